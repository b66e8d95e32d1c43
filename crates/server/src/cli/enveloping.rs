//! What is said on the command line of how envelopes are made.

use std::path::PathBuf;

use toolgate::config::Config;

/// How envelopes are made, instead of as the configuration says.
#[derive(clap::Args)]
pub(super) struct Enveloping {
    /// Give the same request the same envelope each time: its ids are reckoned from it, and no
    /// time passes
    #[arg(long)]
    deterministic_ids: bool,
    /// Log the envelopes of all calls in this folder
    #[arg(long, value_name = "DIR")]
    log_dir: Option<PathBuf>,
}

impl Enveloping {
    /// Puts it into `config`.
    pub(super) fn put(&self, config: &mut Config) {
        config.envelope.deterministic_ids |= self.deterministic_ids;
        if let Some(folder) = &self.log_dir {
            config.envelope.log_dir = folder.to_string_lossy().into_owned();
        }
    }

    /// Where envelopes are logged, if that is said here.
    pub(super) fn log_dir(&self) -> Option<&PathBuf> {
        self.log_dir.as_ref()
    }
}
