//! Tests of the `files` tools, called as the host calls them, each in its own directory.
#![allow(clippy::disallowed_methods, reason = "a test prepares and checks the disk itself")]
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod space;
mod confinement;
mod races;
mod protection;
mod reading;
mod writing;
mod editing;
mod encodings;
mod browsing;
mod searching;
mod arranging;
mod limits;
mod confirming;
mod resources;
mod watching;
