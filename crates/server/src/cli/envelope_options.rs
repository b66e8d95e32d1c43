//! Command-line options for envelopes.

use std::path::PathBuf;

use toolgate_service::config::Config;

/// Options for envelopes that override the configuration.
#[derive(Clone, clap::Args)]
pub(super) struct EnvelopeOptions {
    /// Derive ids from the request and use a fixed time, to give equal requests equal envelopes
    #[arg(long)]
    deterministic_ids: bool,
    /// Log the envelopes of all calls in this folder
    #[arg(long, value_name = "DIR")]
    log_dir: Option<PathBuf>,
}

impl EnvelopeOptions {
    /// Applies the envelope options of the command line to `config`.
    pub(super) fn apply(&self, config: &mut Config) {
        config.envelope.deterministic_ids |= self.deterministic_ids;
        config.envelope.log_dir.clone_from(&self.log_dir);
    }

    /// Returns the folder in the option `--log-dir`, or `None` if the option is not used.
    pub(super) fn log_dir(&self) -> Option<&PathBuf> {
        self.log_dir.as_ref()
    }
}
