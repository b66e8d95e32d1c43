//! Serves a folder over standard input and output (`toolgate stdio`).

mod status;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use toolgate_service::assembly::environment;
use toolgate_service::assembly::server_prep::PreparedWorkspace;
use toolgate_service::assembly::wiring::ServedWorkspace;
use toolgate_service::config::Config;
use toolgate_service::serve::ready::ServerReadyFile;
use toolgate_service::{PreparedServer, serve::shutdown, serve_stdio};

use self::status::StatusReportStyle;
use super::envelope_options::EnvelopeOptions;
use super::{WorkspaceFolderArgs, complain, run_to_end, small_runtime};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  claude mcp add toolgate -- toolgate stdio ~/src/app
  printf '%s\\n' '{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}' | toolgate stdio
  toolgate stdio --dialect synesthetic

Each message is a line of JSON. Standard output has messages only; the log goes to standard error.
The server ends when its input ends.")]
pub(super) struct StdioArgs {
    /// Folder to serve
    #[arg(default_value = ".", env = "TOOLGATE_ROOT")]
    path: PathBuf,
    /// Dialect (protocol) of the messages
    #[arg(long, default_value = "mcp", value_name = "NAME")]
    dialect: String,
    #[command(flatten)]
    enveloping: EnvelopeOptions,
    #[command(flatten)]
    folder: WorkspaceFolderArgs,
}

/// A server that is ready to read its first line.
struct OpenedStdioServer {
    config: Config,
    workspace: ServedWorkspace,
    served: PreparedServer,
    stop: CancellationToken,
    /// Ready file, which tells other programs that the server is ready. Empty until the file is
    /// written.
    ready: Arc<OnceLock<ServerReadyFile>>,
}

pub(super) fn run(args: &StdioArgs) -> anyhow::Result<ExitCode> {
    let status = StatusReportStyle::for_dialect(&args.dialect);
    status.hold_log();
    let prepared = match prepare(args, status) {
        Ok(prepared) => prepared,
        Err(err) => return status.report_failure(err),
    };
    run_to_end(small_runtime()?, async {
        let opened = match open(args, prepared) {
            Ok(opened) => opened,
            Err(err) => return status.report_failure(err),
        };
        let OpenedStdioServer { config, workspace, served, stop, ready } = opened;
        status.report_ready(&args.path, &config, &ready);
        if std::io::stdin().is_terminal() {
            complain(
                "waiting for messages on standard input, one line of JSON each. Usually an agent \
                 starts this program; to call a tool yourself, use `toolgate call`",
            );
        }
        let enveloping = args.enveloping.clone();
        let adapt = move |config: &mut Config| {
            enveloping.apply(config);
            status.prepare_config(config)
        };
        let _watch = args.folder.follow_settings(&workspace, &args.path, adapt, None);
        let result = serve_stdio(&served, &args.dialect, &config, stop).await;
        workspace.close().await;
        if let Some(file) = ready.get() {
            file.remove();
        }
        status.report_end();
        result.map(|()| ExitCode::SUCCESS)
    })
}

/// Loads the settings that the options `args` select, prepares the workspace and confines this
/// process. Fails if a setting is invalid.
fn prepare(
    args: &StdioArgs,
    status: StatusReportStyle,
) -> anyhow::Result<(Config, PreparedWorkspace)> {
    let mut config = args.folder.load_to_serve(&args.path)?.config;
    args.enveloping.apply(&mut config);
    status.prepare_config(&mut config)?;
    let prep = PreparedWorkspace::prepare(&args.path, &config)?;
    let unconfined = prep.confine_server(&config)?;
    environment::report(&config, unconfined);
    Ok((config, prep))
}

/// Opens the workspace `prep` and the dialect, before the server reads the first message. Fails if
/// the dialect is unknown, or the workspace is unusable.
fn open(
    args: &StdioArgs,
    (config, prep): (Config, PreparedWorkspace),
) -> anyhow::Result<OpenedStdioServer> {
    let workspace = ServedWorkspace::open_prepared(prep, &config)?;
    let served = workspace.server();
    // An unknown dialect must fail before the terminal message.
    served.dialect(&args.dialect)?;
    let ready = Arc::new(OnceLock::<ServerReadyFile>::new());
    let ready_at_exit = ready.clone();
    let drain = Duration::from_millis(config.server.drain_ms);
    let stop = shutdown::on_server_signal(drain, move || {
        if let Some(file) = ready_at_exit.get() {
            file.remove();
        }
    })?;
    Ok(OpenedStdioServer { config, workspace, served, stop, ready })
}
