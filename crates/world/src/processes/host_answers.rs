//! Asks package managers for the hosts that the user's own configuration names, and adds these
//! hosts to the network of a program.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use tempfile::TempDir;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use toolgate_contract::{OutputStreamKind, lock_mutex};
use toolgate_net::{HostRules, spawn_blocking};

use super::host_questions::{ConfiguredRegistryHosts, RegistryHostQuery};
use super::{ProcessRunner, ProgramRunLimits, ProgramStartRequest, package_caches, running};
use crate::Root;
use crate::forwarder::{PackageHostSource, ProgramHostAccess};
use crate::programs::ResolvedProgram;
use crate::sandbox::{ProgramConfinement, Sandbox, SandboxLayer, SandboxProfile};

/// The time limit for asking a package manager which hosts its configuration names.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(20);
/// The time between asking a slow package manager to stop (SIGTERM) and killing it.
const QUESTION_GRACE: Duration = Duration::from_millis(500);
/// The maximum number of bytes that are read of a package manager's answer.
const ANSWER_BYTES_MAX: usize = 256 << 10;
/// The time for which a package manager's answer is used without asking again.
const ANSWER_LIFETIME: Duration = Duration::from_secs(300);
/// The maximum number of bytes of a project's settings that are read.
const SETTINGS_BYTES_MAX: u64 = 64 << 10;
/// The beginnings of lines in a project's settings that name the default package registry.
const REGISTRY_KEYS: [&str; 6] =
    ["registry", "npmRegistryServer", "index-url", "index_url", "index", "[[index]]"];
/// Environment variables of the server that a package manager also gets when it is asked for hosts.
const KEPT_VARIABLES: [&str; 3] = ["HOME", "LANG", "TMPDIR"];

/// The cached answers of package managers: the hosts that the user's configuration names, and the
/// time of each answer.
#[derive(Default)]
pub(super) struct ConfiguredRegistryHostsCache(
    tokio::sync::Mutex<BTreeMap<PackageHostSource, (Instant, Option<ConfiguredRegistryHosts>)>>,
);

impl ProcessRunner {
    /// Returns the hosts that the user's own configuration of `source` names. Returns `None` if the
    /// package manager is missing or names no hosts, or if this system cannot limit programs to
    /// some hosts.
    ///
    /// The package manager is asked without a network, in an empty folder. An answer is used for 5
    /// minutes.
    pub async fn named_hosts(
        &self,
        source: PackageHostSource,
        workspace: &Root,
        cancel: &CancellationToken,
    ) -> Option<ConfiguredRegistryHosts> {
        if source == PackageHostSource::Git {
            return ask(self, source, workspace, cancel).await;
        }
        // Programs that start at the same time wait for one answer.
        let mut answers = tokio::select! {
            answers = self.0.host_answers.0.lock() => answers,
            () = cancel.cancelled() => return None,
        };
        if let Some((since, answer)) = answers.get(&source)
            && since.elapsed() < ANSWER_LIFETIME
        {
            return answer.clone();
        }
        let answer = ask(self, source, workspace, cancel).await;
        if !cancel.is_cancelled() {
            answers.insert(source, (Instant::now(), answer.clone()));
        }
        answer
    }
}

/// Adds to `start` the hosts of the package managers that its network rules name, the variables
/// that name the registries to these package managers, and the package caches.
pub(super) async fn prepare_network(
    processes: &ProcessRunner,
    start: &mut ProgramStartRequest,
    cancel: &CancellationToken,
) {
    let ProgramStartRequest { confinement: Some(confinement), env, cwd, .. } = start else {
        return;
    };
    let access = confinement.hosts.clone().filter(|access| !access.sources.is_empty());
    if let Some(access) = &access {
        let mut rules = access.rules.clone();
        for &source in &access.sources {
            let answer = processes.named_hosts(source, &confinement.workspace, cancel).await;
            let Some(ConfiguredRegistryHosts { hosts, variables }) = answer else { continue };
            let Ok(named) = HostRules::parse(&hosts) else { continue };
            rules = rules.merge(&named);
            let has_settings = match cwd.try_clone() {
                Ok(folder) => {
                    let workspace = confinement.workspace.clone();
                    let look = move || has_project_settings(source, &folder, &workspace);
                    spawn_blocking(look).await.unwrap_or(true)
                }
                Err(_) => true,
            };
            if !has_settings {
                for (name, value) in variables {
                    env.entry(name.into()).or_insert_with(|| value.into());
                }
            }
        }
        let setting = access.setting.clone();
        confinement.hosts =
            Some(Arc::new(ProgramHostAccess { rules, sources: Vec::new(), setting }));
    }
    let mut sources = confinement.cache_sources.clone();
    sources.extend(access.iter().flat_map(|access| &access.sources));
    package_caches::add_caches(processes, confinement, env, &sources).await;
}

/// Returns `true` if the settings of the project in `cwd`, or of the workspace, name a registry for
/// `source`. The caller then sets no variable that would override these settings. Blocks.
fn has_project_settings(source: PackageHostSource, cwd: &OwnedFd, workspace: &Root) -> bool {
    let files = RegistryHostQuery::for_source(source).project_settings;
    let folder = workspace.open_dir(".").ok();
    let folders = [Some(cwd.as_fd()), folder.as_ref().map(AsFd::as_fd)];
    let mut folders = folders.into_iter().flatten();
    folders.any(|folder| files.iter().any(|file| names_registry(folder, file)))
}

/// Returns `true` if the settings in `file`, relative to `folder`, name a registry. Also returns
/// `true` if the file cannot be read.
fn names_registry(folder: BorrowedFd<'_>, file: &str) -> bool {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = match openat(folder, file, flags, Mode::empty()) {
        Ok(opened) => opened,
        Err(Errno::NOENT | Errno::NOTDIR) => return false,
        Err(_) => return true,
    };
    let mut text = Vec::new();
    if File::from(opened).take(SETTINGS_BYTES_MAX).read_to_end(&mut text).is_err() {
        return true;
    }
    let text = String::from_utf8_lossy(&text);
    text.lines().any(|line| REGISTRY_KEYS.iter().any(|key| line.trim_start().starts_with(key)))
}

/// Asks the package manager `source` for the hosts that the user's configuration names.
async fn ask(
    processes: &ProcessRunner,
    source: PackageHostSource,
    workspace: &Root,
    cancel: &CancellationToken,
) -> Option<ConfiguredRegistryHosts> {
    let question = RegistryHostQuery::for_source(source);
    let sandbox = processes.sandbox();
    if source == PackageHostSource::Git && !sandbox.protects_git_folder() {
        tracing::warn!("`@git` names no host while programs can change `.git` (sandbox.git)");
        return None;
    }
    let (runner, root) = (processes.clone(), workspace.clone());
    let prepared = spawn_blocking(move || prepare_question(&runner, source, &root)).await;
    let (start, empty) = prepared.ok()??;
    let answer = Mutex::new(Vec::new());
    let read = |stream: OutputStreamKind, bytes: &[u8]| {
        let mut answer = lock_mutex(&answer);
        let is_part = question.fails || stream == OutputStreamKind::Stdout;
        if is_part && answer.len() < ANSWER_BYTES_MAX {
            answer.extend_from_slice(bytes);
        }
    };
    let ended = Box::pin(running::run(processes, start, cancel, &read)).await;
    // Removing the folder blocks.
    let _ = spawn_blocking(move || drop(empty)).await;
    let ended = match ended {
        Ok(ended) => ended,
        Err(err) if err.kind() == ErrorKind::Interrupted => return None,
        Err(err) => {
            tracing::warn!("toolgate could not ask {} for its hosts: {err}", source.name());
            return None;
        }
    };
    let is_needed = |layer| matches!(layer, SandboxLayer::View | SandboxLayer::Network);
    let cannot_limit = ended.sandbox.missing.iter().any(|missing| is_needed(missing.layer));
    if cannot_limit || (!question.fails && !ended.status.success()) {
        return None;
    }
    let answer = answer.into_inner().unwrap_or_else(PoisonError::into_inner);
    let answer = question.read(&String::from_utf8_lossy(&answer));
    if answer.hosts.is_empty() {
        tracing::debug!("the configuration of {} names no host", source.name());
    }
    Some(answer).filter(|answer| !answer.hosts.is_empty())
}

/// Prepares the question to the package manager `source`, and the empty folder in which the package
/// manager starts. Returns `None` if the package manager is missing, or if confined programs can
/// change its settings. Blocks.
fn prepare_question(
    processes: &ProcessRunner,
    source: PackageHostSource,
    workspace: &Root,
) -> Option<(ProgramStartRequest, TempDir)> {
    let question = RegistryHostQuery::for_source(source);
    let sandbox = processes.sandbox();
    let path = processes.unwritable_path(&processes.search_path(), workspace);
    let home = processes.variable("HOME").map(Path::new);
    let is_writable = |at: &Path| sandbox.can_write(workspace, home, at);
    let empty = create_empty_folder(&sandbox, is_writable).ok()?;
    let folder = empty.path().canonicalize().ok()?;
    let cwd = match question.is_about_workspace {
        true => workspace.open_dir(".").ok()?,
        false => OwnedFd::from(File::open(&folder).ok()?),
    };
    let program = ResolvedProgram::find(question.program, cwd.as_fd(), &path).ok()?;
    let settings = user_settings(processes, &question);
    // The file may be a link into the workspace, for example of a person who keeps settings there.
    let is_planted = |file: &PathBuf| is_writable(file) || file.parent().is_some_and(is_writable);
    // Some variables name folders with settings or toolchains.
    let named = question.kept_variables.iter().filter_map(|name| processes.variable(name));
    let mut named = named.map(Path::new).filter(|named| named.is_absolute());
    let is_changeable =
        named.any(is_writable) || (!question.is_about_workspace && is_writable(&folder));
    // A file that confined programs can change does not speak for the user.
    if is_changeable || is_planted(&program.path) || settings.iter().any(is_planted) {
        tracing::warn!("{} is not asked for its hosts: programs can change it", source.name());
        return None;
    }
    let confinement = sandbox.confinement_with(SandboxProfile::ReadOnly, workspace)?;
    let visible_paths = settings.into_iter().chain([folder]).collect();
    // Shows the user's configuration of git.
    let git_folder = question.is_about_workspace.then(PathBuf::new);
    let confinement = ProgramConfinement { visible_paths, git_folder, ..confinement };
    let kept = KEPT_VARIABLES.iter().chain(question.kept_variables);
    let kept: Vec<String> = kept.map(|&name| name.to_owned()).collect();
    let mut env = processes.environment(&kept, &path);
    let own = question.variables.iter();
    env.extend(own.map(|&(name, value)| (OsString::from(name), OsString::from(value))));
    let start = ProgramStartRequest {
        program,
        args: question.args.iter().map(|&arg| arg.into()).collect(),
        cwd,
        env,
        stdin: Some(question.stdin.as_bytes().to_vec()),
        bounds: ProgramRunLimits {
            timeout: QUESTION_TIMEOUT,
            grace: QUESTION_GRACE,
            memory_bytes_max: ANSWER_BYTES_MAX,
            spool_bytes_max: 0,
        },
        confinement: Some(confinement),
    };
    Some((start, empty))
}

/// Creates an empty folder in which a package manager starts to answer a question. Dropping the
/// result removes the folder.
///
/// Most package managers also read settings in the folders around the one in which they start. If
/// programs can write to the temporary folder, the new folder is therefore in the server's state
/// folder.
fn create_empty_folder(
    sandbox: &Sandbox,
    is_writable: impl Fn(&Path) -> bool,
) -> io::Result<TempDir> {
    let temporary = std::env::temp_dir();
    if !is_writable(&temporary) {
        return tempfile::tempdir_in(temporary);
    }
    let state = sandbox.paths().allowed_hosts.as_deref().and_then(Path::parent);
    let state = state.ok_or(ErrorKind::NotFound)?;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(state)?;
    tempfile::tempdir_in(state)
}

/// Returns the paths of the user's settings for the package manager, if they exist.
fn user_settings(processes: &ProcessRunner, question: &RegistryHostQuery) -> Vec<PathBuf> {
    let home = processes.variable("HOME").map(Path::new).filter(|home| home.is_absolute());
    let home = home.unwrap_or(Path::new("/"));
    let files = question.settings.iter().map(|file| home.join(file));
    files.filter(|file| file.exists()).collect()
}
