//! Explains policy decisions (`toolgate policy`).

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use toolgate::assembly::wiring::ServedWorkspace;
use toolgate_contract::{Caller, CallerKind};
use toolgate_host::PolicyDecision;

use super::{FolderArgs, print};

#[derive(clap::Args)]
pub(super) struct PolicyArgs {
    #[command(subcommand)]
    what: PolicyCommand,
}

#[derive(clap::Subcommand)]
enum PolicyCommand {
    /// Show the policy decision on a call, and each rule that was considered
    Explain(ExplainArgs),
}

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  toolgate policy explain ci files_write '{\"path\":\"infra/main.tf\",\"content\":\"\"}'
  toolgate policy explain okta:ada exec_run '{\"command\":\"ls\"}' --kind token --role ops

Nothing is called. It exits with 0 where the call is allowed, with 3 where it is denied, with 4 where
a person is asked first, and with 2 where it cannot be said.")]
struct ExplainArgs {
    /// Caller: the name of a key or token, `local` or `http`
    caller: String,
    /// Name of the tool, in any spelling
    tool: String,
    /// Arguments as a JSON object
    #[arg(default_value = "{}")]
    input: String,
    /// Role of the caller; may be given more than once
    #[arg(long = "role", value_name = "ROLE")]
    roles: Vec<String>,
    /// Scope of the caller's token; may be given more than once
    #[arg(long = "scope", value_name = "SCOPE")]
    scopes: Vec<String>,
    /// Kind of caller; by default, derived from the name
    #[arg(long, value_enum)]
    kind: Option<CallerKindArg>,
    /// Workspace of the call
    #[arg(long, value_name = "PATH", default_value = ".", env = "TOOLGATE_ROOT")]
    root: PathBuf,
    #[command(flatten)]
    folder: FolderArgs,
}

/// Kind of caller.
#[derive(Clone, Copy, clap::ValueEnum)]
enum CallerKindArg {
    Key,
    Token,
    Local,
    Http,
}

impl From<CallerKindArg> for CallerKind {
    fn from(kind: CallerKindArg) -> Self {
        match kind {
            CallerKindArg::Key => Self::Key,
            CallerKindArg::Token => Self::Token,
            CallerKindArg::Local => Self::Local,
            CallerKindArg::Http => Self::Anonymous,
        }
    }
}

pub(super) fn run(args: &PolicyArgs) -> anyhow::Result<ExitCode> {
    let PolicyCommand::Explain(args) = &args.what;
    let input = serde_json::from_str(&args.input).context("the arguments are no JSON")?;
    let loaded = args.folder.load(&args.root)?;
    let host = ServedWorkspace::open_for_inspection(&args.root, &loaded.config)?.host;
    let words = |words: &[String]| words.iter().map(|word| Arc::from(word.as_str())).collect();
    let by_name = Caller::from_name(&args.caller);
    let caller = Caller {
        kind: match args.kind {
            Some(kind) => kind.into(),
            // A token's caller is named by issuer and subject. Key names have no colon.
            None if args.caller.contains(':') => CallerKind::Token,
            None => by_name.kind,
        },
        roles: words(&args.roles),
        scopes: words(&args.scopes),
        ..by_name
    };
    let explained = host.explain(&caller, &args.tool, input)?;
    print(&explained.to_string())?;
    Ok(match explained.decision {
        PolicyDecision::Allowed => ExitCode::SUCCESS,
        PolicyDecision::Denied => ExitCode::from(3),
        PolicyDecision::Confirm => ExitCode::from(4),
    })
}
