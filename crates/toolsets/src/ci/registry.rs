//! The package registry that the user's own settings name, and the access of a restore to it.
//!
//! The package manager itself is asked. It sees the user's settings, but not those of the project,
//! and has no network.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::{Arc, Mutex, PoisonError};

use toolgate_contract::{OutputStream, Tool, ToolContext, ToolError};
use toolgate_net::HttpUrl;
use toolgate_world::forwarder::HostAccess;
use toolgate_world::sandbox::{RestoreAccess, SandboxLayer, SandboxProfile};

use super::CiContext;
use super::actions::OFFLINE_VARIABLES;
use super::build_tool::BuildTool;
use super::projects::{Project, join};
use super::restore::RestoreProject;
use crate::confirmation::{ConfirmationRequest, confirm_if_possible};
use crate::exec::{InputFields, RunProgramInput};

/// The time limit of a question to a package manager.
const QUERY_TIMEOUT_MS: u64 = 20_000;
/// The maximum number of bytes of an answer that are read.
const ANSWER_BYTES_MAX: usize = 256 << 10;
/// The width of the terminal that a package manager is told, so that it does not break lines.
const ANSWER_COLUMNS: &str = "4000";
/// The setting whose hosts the user's registry is added to.
const HOSTS_SETTING: &str = "sandbox.hosts";
/// Options with which a package manager uses no network.
const OFFLINE_OPTIONS: [&str; 2] = ["--offline", "--no-index"];

/// The access of a restore to the user's registry.
pub(super) struct RegistryAccess {
    /// The hosts that the package manager may reach.
    pub(super) hosts: Arc<HostAccess>,
    /// The variable that names the registry, and its value. `None` if the project has settings of
    /// its own, over which the variable would take precedence.
    variable: Option<(String, String)>,
}

/// A question to a package manager about its registry.
struct RegistryQuery {
    program: &'static str,
    args: &'static [&'static str],
    /// The files with the user's settings, relative to the home folder.
    user_settings: &'static [&'static str],
    /// The file with the project's settings, relative to the project's folder.
    project_settings: &'static str,
    /// The variable that names the registry to the package manager.
    variable: &'static str,
    /// Returns the URL of the registry in an answer.
    parse: fn(&str) -> Option<&str>,
}

static NPM: RegistryQuery = RegistryQuery {
    program: "npm",
    // In its global mode, npm does not read the project's settings.
    args: &["config", "get", "registry", "--global"],
    user_settings: &[".npmrc"],
    project_settings: ".npmrc",
    variable: "npm_config_registry",
    parse: first_line,
};

static PIP: RegistryQuery = RegistryQuery {
    program: "python3",
    // Isolated, Python loads no module of the workspace. The project's own interpreter is not
    // asked, because the project decides what it answers.
    args: &["-I", "-m", "pip", "install", "--help"],
    user_settings: &[".config/pip/pip.conf", ".pip/pip.conf"],
    project_settings: ".venv/pip.conf",
    variable: "PIP_INDEX_URL",
    parse: default_index,
};

impl RegistryQuery {
    /// Returns the question for a restore with `command`. `None` if the package manager cannot be
    /// asked, or is told to work offline.
    fn for_command(kind: BuildTool, command: &[String]) -> Option<&'static Self> {
        let has = |wanted: &str| command.iter().any(|word| word == wanted);
        if OFFLINE_OPTIONS.into_iter().any(has) {
            return None;
        }
        match kind {
            BuildTool::Npm => Some(&NPM),
            BuildTool::Pytest if has("pip") => Some(&PIP),
            _ => None,
        }
    }
}

impl RegistryAccess {
    /// Sets the variables of a restore with this access in `env`.
    pub(super) fn set_variables(&self, env: &mut BTreeMap<String, String>) {
        for (name, _) in OFFLINE_VARIABLES {
            env.remove(name);
        }
        env.extend(self.variable.clone());
    }
}

impl CiContext {
    /// Returns the access of a restore of `project` with `command` to the user's registry. `None`
    /// if the settings decide otherwise, or if the registry cannot be found out.
    ///
    /// # Errors
    /// The call was cancelled, or a person was asked and did not agree.
    pub(super) async fn registry_access(
        &self,
        ctx: &ToolContext,
        project: &Project,
        command: &[String],
    ) -> Result<Option<RegistryAccess>, ToolError> {
        let processes = &self.programs.processes;
        let restore = match processes.sandbox().restore_access(RestoreProject::NAME) {
            None | Some(RestoreAccess::Deny) => return Ok(None),
            Some(restore) => restore,
        };
        let Some(query) = RegistryQuery::for_command(project.kind, command) else {
            return Ok(None);
        };
        let Some(url) = self.ask_package_manager(ctx, query).await? else {
            return Ok(None);
        };
        let host = host_rule(&url);
        let Ok(Some(own)) = HostAccess::parse(slice::from_ref(&host), HOSTS_SETTING) else {
            return Ok(None);
        };
        if restore == RestoreAccess::Confirm {
            confirm_registry(ctx, project, query, &host).await?;
        }
        let known = self.programs.confinement().and_then(|confinement| confinement.hosts);
        let hosts = match known {
            Some(known) => Arc::new(HostAccess {
                rules: known.rules.clone().merge(&own.rules),
                setting: known.setting.clone(),
            }),
            None => own,
        };
        let own_settings = join(&project.folder, query.project_settings);
        let is_plain = self
            .programs
            .root
            .run_blocking(ctx, move |root, _| Ok(matches!(root.kind_at(&own_settings), Ok(None))));
        let value = url.uri().to_string();
        let variable = is_plain.await?.then(|| (query.variable.to_owned(), value));
        Ok(Some(RegistryAccess { hosts, variable }))
    }

    /// Returns the registry that the user's settings name. `None` if the package manager does not
    /// say, or if this system cannot limit programs to some hosts.
    async fn ask_package_manager(
        &self,
        ctx: &ToolContext,
        query: &RegistryQuery,
    ) -> Result<Option<HttpUrl>, ToolError> {
        let processes = &self.programs.processes;
        let input = RunProgramInput {
            command: query.program.to_owned(),
            args: query.args.iter().map(|&arg| arg.to_owned()).collect(),
            shell: false,
            cwd: None,
            env: BTreeMap::from([("COLUMNS".to_owned(), ANSWER_COLUMNS.to_owned())]),
            stdin: None,
            timeout_ms: Some(QUERY_TIMEOUT_MS),
            max_output_bytes: None,
        };
        let start = self.programs.prepare_unconfirmed(ctx, input, InputFields::Project).await;
        // Without the package manager, the restore itself fails and says so.
        let Ok(mut start) = start else { return Ok(None) };
        let settings = self.user_settings(query);
        let is_writable = |file: &Path| {
            let folder = file.parent().unwrap_or(file).to_string_lossy();
            processes.unwritable_path(&folder, &self.programs.root).is_empty()
        };
        // A file that confined programs can change does not speak for the user.
        let is_planted = is_writable(&start.program.path)
            || settings.iter().any(|file| is_writable(file.as_path()));
        if is_planted {
            return Ok(None);
        }
        let Some(confinement) = &mut start.confinement else { return Ok(None) };
        confinement.profile = SandboxProfile::ReadOnly;
        confinement.hosts = None;
        confinement.visible_paths.extend(settings);
        let answer = Mutex::new(Vec::new());
        let read = |stream: OutputStream, bytes: &[u8]| {
            let mut answer = answer.lock().unwrap_or_else(PoisonError::into_inner);
            if stream == OutputStream::Stdout && answer.len() < ANSWER_BYTES_MAX {
                answer.extend_from_slice(bytes);
            }
        };
        let ended = processes.run(start, &ctx.cancel, &read).await;
        if ctx.cancel.is_cancelled() {
            return Err(ToolError::canceled());
        }
        let Ok(ended) = ended else { return Ok(None) };
        let is_needed = |layer| matches!(layer, SandboxLayer::View | SandboxLayer::Network);
        let cannot_limit = ended.sandbox.missing.iter().any(|missing| is_needed(missing.layer));
        if cannot_limit || !ended.status.success() {
            return Ok(None);
        }
        let answer = answer.into_inner().unwrap_or_else(PoisonError::into_inner);
        let answer = String::from_utf8_lossy(&answer);
        let url = (query.parse)(&answer).map(without_user);
        Ok(url.and_then(|url| HttpUrl::parse(&url).ok()))
    }
}

impl CiContext {
    /// Returns the files with the user's settings that exist.
    fn user_settings(&self, query: &RegistryQuery) -> Vec<PathBuf> {
        let home = self.programs.processes.variable("HOME").map(PathBuf::from);
        let Some(home) = home.filter(|home| home.is_absolute()) else { return Vec::new() };
        let files = query.user_settings.iter().map(|file| home.join(file));
        files.filter(|file| file.is_file()).collect()
    }
}

/// Asks a person, if possible, whether a restore of `project` may reach `host`.
async fn confirm_registry(
    ctx: &ToolContext,
    project: &Project,
    query: &RegistryQuery,
    host: &str,
) -> Result<(), ToolError> {
    let kind = project.kind.name();
    let folder = &project.folder;
    let program = query.program;
    let question = format!(
        "Fetch the dependencies of the {kind} project in `{folder}` from `{host}`? Your own \
         settings of {program} name this host. The package manager and the scripts that it runs \
         can reach it, and no other host."
    );
    let request = ConfirmationRequest {
        key: "restore_registry",
        question,
        action: "fetching dependencies from the network",
        setting: "sandbox.restore",
    };
    confirm_if_possible(ctx, request).await
}

/// Returns the rule that allows the host of `url`.
fn host_rule(url: &HttpUrl) -> String {
    let host = match url.host() {
        host if host.contains(':') => format!("[{host}]"),
        host => host.to_owned(),
    };
    match url.port() {
        443 | 80 => host,
        port => format!("{host}:{port}"),
    }
}

/// Returns `url` without a user name and password, which the project's scripts must not see.
fn without_user(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{scheme}://{host}{path}")
}

/// Returns the first line of an answer that consists of a URL.
fn first_line(answer: &str) -> Option<&str> {
    answer.lines().map(str::trim).find(|line| !line.is_empty())
}

/// Returns the index that the help of pip names as the default. It is the configured one.
fn default_index(help: &str) -> Option<&str> {
    let (_, rest) = help.split_once("--index-url <url>")?;
    let (description, _) = rest.split_once("--extra-index-url").unwrap_or((rest, ""));
    let (_, rest) = description.split_once("(default")?;
    let (url, _) = rest.split_once(')')?;
    Some(url.trim_start_matches(':').trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_is_read_from_the_help_of_pip() {
        let help = "  -i, --index-url <url>       Base URL of the Python Package Index (default \
                    https://packages.example.com/simple). This should point to\n  \
                    --extra-index-url <url>     Extra URLs (default no)\n";
        assert_eq!(default_index(help), Some("https://packages.example.com/simple"));
        let other = "--index-url <url> An index.\n--extra-index-url <url> (default x)\n";
        assert_eq!(default_index(other), None);
        assert_eq!(default_index(""), None);
    }

    #[test]
    fn a_user_name_and_password_are_removed_from_a_url() {
        for (url, expected) in [
            ("https://ada:key@a.example/simple/", "https://a.example/simple/"),
            ("https://****@a.example:8443", "https://a.example:8443"),
            ("https://a.example/@scope", "https://a.example/@scope"),
            ("undefined", "undefined"),
        ] {
            assert_eq!(without_user(url), expected);
        }
    }

    #[test]
    fn the_rule_of_a_registry_names_its_host_and_an_unusual_port() {
        for (url, rule) in [
            ("https://a.example/x", "a.example"),
            ("http://a.example", "a.example"),
            ("http://a.example:4873/", "a.example:4873"),
            ("https://[fd12::1]:8443/", "[fd12::1]:8443"),
        ] {
            assert_eq!(host_rule(&HttpUrl::parse(url).unwrap()), rule);
        }
    }

    #[test]
    fn only_npm_and_pip_are_asked_and_only_for_restores_that_use_the_network() {
        let program = |kind, line: &str| {
            let command: Vec<_> = line.split(' ').map(str::to_owned).collect();
            RegistryQuery::for_command(kind, &command).map(|query| query.program)
        };
        assert_eq!(program(BuildTool::Npm, "npm ci"), Some("npm"));
        assert_eq!(program(BuildTool::Npm, "npm ci --offline"), None);
        let pip = ".venv/bin/python -m pip install -r requirements.txt";
        assert_eq!(program(BuildTool::Pytest, pip), Some("python3"));
        assert_eq!(program(BuildTool::Pytest, "uv sync"), None);
        assert_eq!(program(BuildTool::Cargo, "cargo fetch"), None);
    }
}
