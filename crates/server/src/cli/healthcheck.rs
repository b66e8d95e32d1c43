//! Checks whether a running server responds (`toolgate healthcheck`).

use std::process::ExitCode;

use super::remote::check_health;
use super::{complain, print, run_to_end, small_runtime};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  toolgate healthcheck
  toolgate healthcheck https://tools.example/healthz

The exit code is 0 if the server answers with a status of 2xx within 5 seconds, and 1 otherwise.
No key is needed. Use this command in containers without curl.")]
pub(super) struct HealthcheckArgs {
    /// URL of the server's health check
    #[arg(default_value = "http://127.0.0.1:8000/healthz", env = "TOOLGATE_HEALTH_URL")]
    url: String,
}

pub(super) fn run(args: &HealthcheckArgs) -> anyhow::Result<ExitCode> {
    match run_to_end(small_runtime()?, check_health(&args.url)) {
        Ok(()) => {
            print("healthy\n")?;
            Ok(ExitCode::SUCCESS)
        }
        Err(err) => {
            complain(&format!("{err:#}"));
            Ok(ExitCode::from(1))
        }
    }
}
