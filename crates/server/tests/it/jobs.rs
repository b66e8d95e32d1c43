//! Jobs: accepted is never lost, cancelled is gone, and all of it is seen by whoever started them.

mod survival;
mod sharing;
mod cancelling;
mod turns;
mod programs;
mod tools;
mod records;
mod tasks;
mod extension;
