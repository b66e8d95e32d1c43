//! Tests of jobs: acceptance, cancellation, survival of a server's end, and the jobs that each
//! caller sees.

mod survival;
mod sharing;
mod cancelling;
mod turns;
mod programs;
mod tools;
mod records;
mod tasks;
mod extension;
mod rest;
