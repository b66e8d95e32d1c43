//! Decides which package registries a dependency restore may reach: those that the user's own
//! settings name, those that project files name, and further hosts that a person allows.

use std::sync::Arc;

use toolgate_contract::{Tool, ToolContext, ToolError};
use toolgate_net::addresses::{is_own_host, is_public};
use toolgate_net::{HostRules, normalize_host};
use toolgate_world::forwarder::{PackageHostSource, ProgramHostAccess, RefusedHost};
use toolgate_world::root::quoted_path;
use toolgate_world::sandbox::RestoreRegistryAccess;

use super::CiContext;
use super::build_tool::BuildTool;
use super::project_hosts::{ProjectHost, find_hosts};
use super::projects::WorkspaceProject;
use super::restore::RestoreProject;
use crate::confirmation::{
    ConfirmationRequest, ConsentOutcome, ask_if_possible, confirm_if_possible,
};

/// The name of the setting for the hosts that a dependency restore may reach.
const HOSTS_SETTING: &str = "sandbox.hosts";
/// The name of the setting that requires confirmation before dependencies are restored.
const RESTORE_SETTING: &str = "sandbox.restore";
/// Options that keep a package manager from using the network.
const OFFLINE_OPTIONS: [&str; 2] = ["--offline", "--no-index"];
/// Advice for a caller whose dependency restore was refused because it has no network.
const OFFLINE_OPTION_ADVICE: &str =
    "if a cache has all dependencies, pass `--offline` in `args` (`--no-index` for pip)";
/// The lines of the configuration that allow a dependency restore to use the network.
pub(super) const NETWORK_SETTINGS: &str =
    "[[sandbox.for]]\ntools = \"ci.restore\"\nprofile = \"network\"";
/// The key of the question whether a dependency restore may reach the registry that the user's
/// settings name. A user who calls the tool at a terminal answers it by making the call.
pub const OWN_REGISTRY_QUESTION: &str = "restore_registry";
/// The key prefix of the question whether a dependency restore may also reach hosts that only
/// project files name.
const PROJECT_HOSTS_QUESTION: &str = "restore_project_hosts";
/// The key prefix of the question whether a dependency restore may also reach hosts to which the
/// sandbox denied access.
const REFUSED_HOSTS_QUESTION: &str = "restore_hosts";
/// The number of hash characters in the key of a question about hosts.
const HASH_CHARS: usize = 16;

/// The access that a dependency restore has to package registries.
pub(super) struct PackageRegistryAccess {
    /// The hosts that the package manager may reach.
    pub(super) hosts: Arc<ProgramHostAccess>,
    /// The hosts that the user's settings name, as text for questions to a person.
    named: String,
}

/// Returns the package managers whose settings name the registry hosts for a restore with
/// `command`. Returns an empty list if the package manager cannot be asked, or if `command` makes
/// it work offline.
pub(super) fn host_sources(kind: BuildTool, command: &[String]) -> &'static [PackageHostSource] {
    let has = |wanted: &str| command.iter().any(|word| word == wanted);
    let program = command.first().map_or("", String::as_str);
    if is_offline(command) {
        return &[];
    }
    match kind {
        BuildTool::Npm => &[PackageHostSource::Npm],
        BuildTool::Pnpm => &[PackageHostSource::Pnpm],
        // Only one of them answers.
        BuildTool::Yarn => &[PackageHostSource::Yarn, PackageHostSource::ModernYarn],
        BuildTool::Cargo => &[PackageHostSource::Cargo],
        BuildTool::Go => &[PackageHostSource::Go],
        BuildTool::Maven => &[PackageHostSource::Maven],
        BuildTool::Dotnet => &[PackageHostSource::Nuget],
        BuildTool::Pytest if program == "uv" => &[PackageHostSource::Uv],
        // Poetry has no settings of the user about its index, so it shares that of pip.
        BuildTool::Pytest if has("pip") || program == "poetry" => &[PackageHostSource::Pip],
        BuildTool::Pytest | BuildTool::Gradle | BuildTool::Make => &[],
    }
}

/// Returns true if an option in `command` keeps a package manager from using the network.
fn is_offline(command: &[String]) -> bool {
    command.iter().any(|word| OFFLINE_OPTIONS.contains(&word.as_str()))
}

impl CiContext {
    /// Refuses a restore of `project` with `command` if the settings deny the network and no cache
    /// can contain the dependencies.
    ///
    /// # Errors
    /// Fails with a sentence that names the setting which would allow the restore.
    pub(super) async fn check_restore_network(
        &self,
        ctx: &ToolContext,
        project: &WorkspaceProject,
        command: &[String],
    ) -> Result<(), ToolError> {
        let processes = self.programs.processes.clone();
        let sandbox = processes.sandbox();
        let restore = sandbox.restore_access(RestoreProject::NAME);
        let is_denied = restore.is_none_or(|restore| restore == RestoreRegistryAccess::Deny);
        let confinement = self.programs.confinement();
        let has_network = confinement.is_none_or(|confinement| confinement.has_network());
        // A folder that the settings show may be a cache of the user.
        if !is_denied || has_network || is_offline(command) || sandbox.shows_other_folders() {
            return Ok(());
        }
        let sources = host_sources(project.kind, command);
        let find = move |root: &_, _: &_| Ok(processes.has_kept_caches(root, sources));
        if self.programs.root.run_blocking(ctx, find).await? {
            return Ok(());
        }
        let allow = match restore {
            Some(_) => "set `restore = \"confirm\"` in [sandbox] to allow the registry of the \
                        user's own settings, or name hosts in `sandbox.hosts`"
                .to_owned(),
            None => format!(
                "allow it with these lines in the configuration, or only some hosts with \
                 `hosts = [\"HOST\"]` and `profile = \"workspace\"`:\n{NETWORK_SETTINGS}"
            ),
        };
        Err(ToolError::not_allowed(format!(
            "fetching dependencies needs a network, which the sandbox denies here, so nothing was \
             run; {OFFLINE_OPTION_ADVICE}; otherwise, the server's operator can {allow}"
        )))
    }

    /// Returns the access to package registries for a restore of `project` with `command`. Asks a
    /// person if confirmation is required. Returns `None` if the settings deny access to the user's
    /// registry, or if that registry is unknown.
    ///
    /// # Errors
    /// Fails if the call was cancelled, or if a person was asked and did not agree.
    pub(super) async fn registry_access(
        &self,
        ctx: &ToolContext,
        project: &WorkspaceProject,
        command: &[String],
    ) -> Result<Option<PackageRegistryAccess>, ToolError> {
        let processes = &self.programs.processes;
        let restore = match processes.sandbox().restore_access(RestoreProject::NAME) {
            None | Some(RestoreRegistryAccess::Deny) => return Ok(None),
            Some(restore) => restore,
        };
        let mut sources = Vec::new();
        let mut named = Vec::new();
        for &source in host_sources(project.kind, command) {
            let answer = processes.named_hosts(source, &self.programs.root, &ctx.cancel).await;
            if let Some(answer) = answer {
                sources.push(source);
                named.extend(answer.hosts);
            }
        }
        if ctx.cancel.is_cancelled() {
            return Err(ToolError::canceled());
        }
        let Ok(own) = HostRules::parse(&named) else { return Ok(None) };
        if named.is_empty() {
            return Ok(None);
        }
        let allowed = self.allowed_hosts(ctx, project).await?;
        // A host that is in no setting of the user never leads to a private network.
        let allowed = HostRules::parse(&allowed).unwrap_or_default().only_public();
        let known = self.programs.confinement().and_then(|confinement| confinement.hosts);
        let mut hosts =
            ProgramHostAccess { rules: allowed, sources, setting: HOSTS_SETTING.to_owned() };
        if let Some(known) = known {
            hosts = known.merge(&hosts);
        }
        let reachable = hosts.rules.clone().merge(&own);
        let (kind, folder) = (project.kind, project.folder.clone());
        let find = move |root: &_, watch: &_| Ok(find_hosts(root, kind, &folder, watch));
        let found = self.programs.root.run_blocking(ctx, find).await?;
        let is_new = |host: &ProjectHost| !reachable.allow(&host.host, host.port);
        let of_project: Vec<ProjectHost> = found.into_iter().filter(is_new).collect();
        let named = own.to_string();
        if restore == RestoreRegistryAccess::Confirm || !of_project.is_empty() {
            let question = registry_question(project, &named, &of_project);
            let key = match of_project.is_empty() {
                true => answered_key(ctx, &named).unwrap_or(OWN_REGISTRY_QUESTION.to_owned()),
                false => hashed_key(PROJECT_HOSTS_QUESTION, &question),
            };
            let request = ConfirmationRequest {
                key: &key,
                question,
                action: "fetching dependencies from the network",
                setting: RESTORE_SETTING,
            };
            let consent = confirm_if_possible(ctx, request).await?;
            if consent == ConsentOutcome::Given && !of_project.is_empty() {
                // The call may be made again with an answer about refused hosts. The hosts of this
                // answer are allowed then, so the question would have another key.
                ctx.asker.set_note(Some(format!("{key} {}", hashed_key("", &named))));
                let rules = of_project.into_iter().map(|host| host.rule).collect();
                hosts = self.allow_hosts(ctx, project, &hosts, rules).await?;
            }
        }
        Ok(Some(PackageRegistryAccess { hosts: Arc::new(hosts), named }))
    }

    /// Asks a person, if possible, whether a restore of `project` may also reach the hosts to which
    /// the sandbox `refused` access. Returns the access with these hosts. Returns `None` if no host
    /// can be allowed, or if nobody agrees.
    ///
    /// # Errors
    /// Fails if the call was cancelled, or if the call must end until the question is answered.
    pub(super) async fn allow_refused_hosts(
        &self,
        ctx: &ToolContext,
        project: &WorkspaceProject,
        access: &PackageRegistryAccess,
        refused: &[RefusedHost],
    ) -> Result<Option<PackageRegistryAccess>, ToolError> {
        let rules: Vec<String> = refused.iter().filter_map(allowing_rule).collect();
        if rules.is_empty() {
            return Ok(None);
        }
        let kind = project.kind.name();
        let listed = list(rules.iter().map(String::as_str));
        let named = &access.named;
        let folder = quoted_path(&project.folder);
        let question = format!(
            "The package manager of the {kind} project in {folder}, or a script that it ran, also \
             needs {listed}. The registry `{named}`, a file of the project or a package names \
             these hosts. Allow these hosts for this project? Packages of the project can reach \
             the hosts, too. toolgate remembers your answer."
        );
        let key = hashed_key(REFUSED_HOSTS_QUESTION, &listed);
        if ask_if_possible(ctx, &key, question).await? != ConsentOutcome::Given {
            return Ok(None);
        }
        let hosts = self.allow_hosts(ctx, project, &access.hosts, rules).await?;
        Ok(Some(PackageRegistryAccess { hosts: Arc::new(hosts), named: named.clone() }))
    }

    /// Returns `access` extended by the hosts of `rules`, and remembers for later calls that a
    /// person allowed these hosts for `project`.
    async fn allow_hosts(
        &self,
        ctx: &ToolContext,
        project: &WorkspaceProject,
        access: &ProgramHostAccess,
        rules: Vec<String>,
    ) -> Result<ProgramHostAccess, ToolError> {
        let added = HostRules::parse(&rules).unwrap_or_default().only_public();
        let processes = self.programs.processes.clone();
        let subject = subject(project);
        let remember = move |root: &_, _: &_| {
            if let Err(err) = processes.remember_hosts(root, &subject, &rules) {
                tracing::warn!("the allowed hosts of {subject} cannot be stored: {err}");
            }
            Ok(())
        };
        self.programs.root.run_blocking(ctx, remember).await?;
        let added = ProgramHostAccess { rules: added, sources: Vec::new(), setting: String::new() };
        Ok(access.merge(&added))
    }

    /// Returns the rules for the hosts that a person has allowed for `project`, also in earlier
    /// calls.
    async fn allowed_hosts(
        &self,
        ctx: &ToolContext,
        project: &WorkspaceProject,
    ) -> Result<Vec<String>, ToolError> {
        let processes = self.programs.processes.clone();
        let subject = subject(project);
        let read = move |root: &_, _: &_| Ok(processes.allowed_hosts(root, &subject));
        self.programs.root.run_blocking(ctx, read).await
    }
}

/// Returns the key under which the allowed hosts of `project` are stored.
fn subject(project: &WorkspaceProject) -> String {
    format!("{} in {}", project.kind.name(), project.folder)
}

/// Returns the text of the question whether a restore of `project` may reach the hosts `named` by
/// the user's settings, and the hosts that only project files name.
fn registry_question(
    project: &WorkspaceProject,
    named: &str,
    of_project: &[ProjectHost],
) -> String {
    let kind = project.kind.name();
    let folder = quoted_path(&project.folder);
    let mut question = format!(
        "Fetch the dependencies of the {kind} project in {folder} from `{named}`? Your own \
         settings of the package manager name this registry. The package manager and the scripts \
         that it runs can reach this registry, and no other host."
    );
    if !of_project.is_empty() {
        let hosts = of_project.iter().map(|host| format!("`{}` (`{}`)", host.rule, host.file));
        let hosts = hosts.collect::<Vec<_>>().join(", ");
        question.push_str(&format!(
            " Files of the project name further hosts that your settings do not name: {hosts}. If \
             you agree, the project can reach these hosts, too."
        ));
    }
    question
}

/// Returns the key of the question that a person answered when this call ran before. The question
/// must be about project hosts and the hosts `named` by the user's settings. Returns `None` if
/// there is no such answer.
fn answered_key(ctx: &ToolContext, named: &str) -> Option<String> {
    let note = ctx.asker.stored_note()?;
    let (key, noted) = note.split_once(' ')?;
    let is_same = key.starts_with(PROJECT_HOSTS_QUESTION) && noted == hashed_key("", named);
    let is_answered = ctx.asker.answers().contains_key(key);
    (is_same && is_answered).then(|| key.to_owned())
}

/// Returns the key of a question about `hosts`: `start` and a hash of `hosts`. The hash keeps an
/// answer about different hosts from being used for this question.
fn hashed_key(start: &str, hosts: &str) -> String {
    let hash = blake3::hash(hosts.as_bytes()).to_hex();
    format!("{start}_{}", &hash[..HASH_CHARS])
}

/// Returns the entry of the setting `sandbox.hosts` that would allow the host `refused`. Returns
/// `None` if a project must not reach this host, for example because its address is private.
fn allowing_rule(refused: &RefusedHost) -> Option<String> {
    refused.allow.as_ref()?;
    // The settings limit the paths of this host, so nobody is asked about others.
    if refused.host.contains('/') {
        return None;
    }
    let (host, port) = refused.host.rsplit_once(':')?;
    let normal = normalize_host(host)?;
    let address = normal.parse::<std::net::IpAddr>();
    if is_own_host(&normal) || address.is_ok_and(|address| !is_public(address)) {
        return None;
    }
    Some(if ["443", "80"].contains(&port) { host.to_owned() } else { refused.host.clone() })
}

/// Joins `names`, each in backquotes, with commas.
fn list<'n>(names: impl Iterator<Item = &'n str>) -> String {
    names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_managers_are_asked_only_for_restores_that_use_the_network() {
        let sources = |kind, line: &str| {
            let command: Vec<_> = line.split(' ').map(str::to_owned).collect();
            host_sources(kind, &command)
        };
        assert_eq!(sources(BuildTool::Npm, "npm ci"), [PackageHostSource::Npm]);
        assert!(sources(BuildTool::Npm, "npm ci --offline").is_empty());
        let pip = ".venv/bin/python -m pip install -r requirements.txt";
        assert_eq!(sources(BuildTool::Pytest, pip), [PackageHostSource::Pip]);
        assert_eq!(sources(BuildTool::Pytest, "uv sync"), [PackageHostSource::Uv]);
        assert_eq!(sources(BuildTool::Pytest, "poetry install"), [PackageHostSource::Pip]);
        assert_eq!(sources(BuildTool::Cargo, "cargo fetch"), [PackageHostSource::Cargo]);
        assert!(sources(BuildTool::Gradle, "gradle dependencies").is_empty());
    }

    #[test]
    fn a_refused_host_can_be_allowed_unless_it_is_on_this_machine_or_never_allowed() {
        let rule = |host: &str, allow: Option<&str>| {
            let why = "it is not in sandbox.hosts".to_owned();
            let allow = allow.map(str::to_owned);
            allowing_rule(&RefusedHost { host: host.to_owned(), tries: 1, why, allow })
        };
        assert_eq!(rule("a.example:443", Some("add")).as_deref(), Some("a.example"));
        assert_eq!(rule("a.example:8443", Some("add")).as_deref(), Some("a.example:8443"));
        assert_eq!(rule("a.example:443", None), None);
        assert_eq!(rule("a.example:443/acme/a", Some("add")), None);
        for own in ["a.localhost:443", "127.0.0.1:80", "10.0.0.1:80", "[::1]:80", "other hosts"] {
            assert_eq!(rule(own, Some("add")), None, "{own}");
        }
    }
}
