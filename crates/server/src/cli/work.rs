//! Runs the jobs of a fleet without serving anything (`toolgate work`).

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use tokio_util::task::AbortOnDropHandle;
use toolgate_host::FleetServerRole;
use toolgate_service::assembly::environment;
use toolgate_service::assembly::server_prep::PreparedWorkspace;
use toolgate_service::assembly::wiring::ServedWorkspace;
use toolgate_service::config::Config;
use toolgate_service::serve::shutdown;
use toolgate_service::telemetry::call_lines::print_calls;

use super::serve::CallLogLineFormatArg;
use super::{WorkspaceFolderArgs, run_to_end};

/// Time for stopped jobs and their programs to end, after the drain time, `jobs.drain_ms`.
const STOP_TIME: Duration = Duration::from_secs(10);

#[derive(Clone, clap::Args)]
#[command(after_help = "\
Examples:
  toolgate work                         run jobs that servers of this folder accepted
  toolgate work /workspace --config /etc/toolgate/toolgate.toml

A worker needs `fleet.url` and the same settings as the servers whose jobs it runs. A worker does not
listen at any address. At most half of `limits.programs` jobs run at once. After ctrl-c, the worker
starts no more jobs, and running jobs have `jobs.drain_ms` to end. Another ctrl-c ends the worker at
once.")]
pub(super) struct WorkArgs {
    /// Workspace in which the jobs run
    #[arg(default_value = ".", env = "TOOLGATE_ROOT")]
    path: PathBuf,
    /// Print one line for each call on standard error, the audit record of each call as JSON, or
    /// nothing. Overrides `log.calls`
    #[arg(long, value_enum, value_name = "LINES")]
    log: Option<CallLogLineFormatArg>,
    #[command(flatten)]
    folder: WorkspaceFolderArgs,
}

pub(super) fn run(args: &WorkArgs) -> anyhow::Result<ExitCode> {
    let mut loaded = args.folder.load_to_serve(&args.path)?;
    args.adapt(&mut loaded.config);
    if loaded.config.fleet.url.is_none() {
        bail!(
            "a worker needs the job database of its servers: set fleet.url, or run `toolgate serve`, \
             which runs its own jobs"
        );
    }
    if loaded.config.jobs.to == "off" {
        bail!("jobs are off (jobs.to), so a worker has nothing to do");
    }
    let prep = PreparedWorkspace::prepare(&args.path, &loaded.config)?;
    let unconfined = prep.confine_server(&loaded.config)?;
    environment::report(&loaded.config, unconfined);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    run_to_end(runtime, async move {
        let workspace = ServedWorkspace::open_prepared(prep, &loaded.config)?;
        let drain = Duration::from_millis(loaded.config.jobs.drain_ms);
        let stop = shutdown::on_server_signal(drain.saturating_add(STOP_TIME), || {})?;
        print_start(args);
        let printing = print_calls(&workspace.host, loaded.config.log.calls);
        let _printing = AbortOnDropHandle::new(toolgate_net::spawn_task(printing));
        let adapt = {
            let args = args.clone();
            move |config: &mut Config| {
                args.adapt(config);
                Ok(())
            }
        };
        let _watch = args.folder.follow_settings(&workspace, &args.path, adapt, None);
        let host = workspace.host.clone();
        let maintenance = toolgate_net::spawn_task(async move { host.maintain_jobs().await });
        let _maintenance = AbortOnDropHandle::new(maintenance);
        stop.cancelled().await;
        tracing::info!(
            "the worker waits for its running jobs and starts no more; another signal \
             stops the worker at once"
        );
        workspace.host.drain_jobs().await;
        workspace.close().await;
        Ok(ExitCode::SUCCESS)
    })
}

/// Prints that the worker has started and runs the jobs in a folder.
#[allow(clippy::print_stderr, reason = "a person started the worker to see this")]
fn print_start(args: &WorkArgs) {
    let root = args.path.canonicalize().unwrap_or_else(|_| args.path.clone());
    eprintln!("toolgate: running jobs in {}", root.display());
}

impl WorkArgs {
    /// Applies the options of `toolgate work` to `config`.
    fn adapt(&self, config: &mut Config) {
        config.fleet.kind = FleetServerRole::Worker;
        if let Some(lines) = self.log {
            config.log.calls = lines.into();
        }
    }
}
