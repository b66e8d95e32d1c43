//! The `files` tools, called as the host calls them, on directories of their own.
#![allow(clippy::disallowed_methods, reason = "a test sets up and looks at the disk itself")]
#![allow(clippy::unwrap_used, reason = "what a test expects and does not find fails it")]

mod space;
mod confinement;
mod races;
mod protection;
mod reading;
mod writing;
mod editing;
mod browsing;
mod searching;
mod arranging;
mod limits;
mod confirming;
mod resources;
mod watching;
