//! Explains policy decisions (`toolgate policy`).

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use jiff::Timestamp;
use toolgate_contract::{Caller, CallerKind, exact_json};
use toolgate_host::PolicyDecision;
use toolgate_service::assembly::wiring::ServedWorkspace;
use toolgate_service::config::ApiKey;

use super::check_config::without_secret_sources;
use super::{WorkspaceFolderArgs, complain, print};

#[derive(clap::Args)]
pub(super) struct PolicyArgs {
    #[command(subcommand)]
    command: PolicyCommand,
}

#[derive(clap::Subcommand)]
enum PolicyCommand {
    /// Show the policy decision on a call, and each rule that was considered
    Explain(PolicyExplainArgs),
}

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  toolgate policy explain ci files_write '{\"path\":\"infra/main.tf\",\"content\":\"\"}'
  toolgate policy explain okta:ada exec_run '{\"command\":\"ls\"}' --kind token --role ops

Nothing is called, and the settings file need not be trusted. The exit code is 0 if the call is
allowed, 3 if it is denied, 4 if a person must confirm it, and 2 if there is no decision.")]
struct PolicyExplainArgs {
    /// Caller: the name of a key or token, `local` or `http`
    caller: String,
    /// Name of the tool, in any spelling
    tool: String,
    /// Arguments as a JSON object
    #[arg(default_value = "{}")]
    input: String,
    /// Role of the caller; may be given more than once. By default, the roles of its key
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
    folder: WorkspaceFolderArgs,
}

/// Kind of caller, as an option of the command line.
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
    let PolicyCommand::Explain(args) = &args.command;
    let input = exact_json::parse(&args.input).context("the arguments are not JSON")?;
    let config = without_secret_sources(&args.folder.load_to_check(&args.root)?.config);
    let host = ServedWorkspace::open_for_inspection(&args.root, &config)?.host;
    let words = |words: &[String]| words.iter().map(|word| Arc::from(word.as_str())).collect();
    let by_name = Caller::from_name(&args.caller);
    let kind = match args.kind {
        Some(kind) => kind.into(),
        // A token's caller is named by issuer and subject. Key names have no colon.
        None if args.caller.contains(':') => CallerKind::Token,
        None => by_name.kind,
    };
    let mut roles = args.roles.clone();
    if kind == CallerKind::Key {
        let keys = config.valid_keys(Timestamp::now())?;
        let key = keys.iter().rfind(|key| key.name == args.caller);
        if key.is_none() && roles.is_empty() && !keys.is_empty() {
            complain(&unknown_key(&args.caller, &keys));
        }
        if let Some(key) = key.filter(|key| roles.is_empty() && !key.roles.is_empty()) {
            roles.clone_from(&key.roles);
            complain(&format!("the key of `{}` has the roles {}", args.caller, roles.join(", ")));
        }
    }
    let caller = Caller { kind, roles: words(&roles), scopes: words(&args.scopes), ..by_name };
    let explained = host.explain(&caller, &args.tool, input)?;
    print(&explained.to_string())?;
    if let Some(problem) = &explained.input_problem {
        complain(&format!("with these arguments, the call would be refused: {problem}"));
    }
    Ok(match explained.decision {
        PolicyDecision::Allowed => ExitCode::SUCCESS,
        PolicyDecision::Denied => ExitCode::from(3),
        PolicyDecision::Confirm => ExitCode::from(4),
    })
}

/// Returns the note that no API key in `keys` has the caller name `name`. The note lists the names
/// that exist.
fn unknown_key(name: &str, keys: &[ApiKey]) -> String {
    let names: BTreeSet<_> = keys.iter().map(|key| format!("`{}`", key.name)).collect();
    let names: Vec<_> = names.into_iter().collect();
    format!(
        "no valid key has the name `{name}`, so this caller has no roles; the keys are named {}",
        names.join(", ")
    )
}
