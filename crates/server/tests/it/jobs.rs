//! Jobs: acceptance, cancellation, survival of the server, and the views of their callers.

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
