//! Construction of a server from its settings, and its reload.

pub mod audit_setup;
pub(crate) mod config_reload;
mod declared_tools;
pub mod envelope_setup;
pub mod environment;
pub(crate) mod fleet_digests;
pub(crate) mod limits;
pub(crate) mod live_settings;
pub(crate) mod offer;
pub(crate) mod protected_paths;
mod rule_warnings;
mod tool_sets;
pub mod server_prep;
pub(crate) mod single_answer;
pub(crate) mod static_resources;
mod tool_search;
pub(crate) mod transport_limits;
pub mod wiring;
pub mod pins;
pub mod probe;
pub mod programs_with_hosts;
pub mod sign_in;
