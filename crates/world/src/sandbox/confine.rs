//! Turns a request to run a program into an order for a sandbox helper.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use rustix::pipe::{PipeFlags, pipe_with};

use super::capabilities::{ProgramStartFolder, SandboxCapabilities, ServerEnvironmentVariables};
use super::coverage::{IncompleteSandboxError, SandboxCoverage};
use super::exit_pipe::ExitStatusPipe;
use super::plan::{OsStringBytes, SandboxSpawnRequest, SandboxedExecutable, seal};
use super::reserved_names::FileNameReservation;
use super::settings::IncompleteSandboxPolicy;
use super::ssh_access::SshAccessFolder;
use super::standby::{
    IdleSandboxHelpers, SandboxHelperKey, SandboxHelperProcess, SandboxHelperTask, has_helper_ended,
};
use super::trusted_certificates::TrustedCertificatesFile;
use super::view::SandboxViewRequest;
use super::{ProgramConfinement, Sandbox, coverage, layers};
use crate::Root;
use crate::forwarder::{
    NetworkForwarder, ProgramHostAccess, ProgramNetworkUsage, RunSshAgent, TlsInspector,
    proxy_variables, trust_variables,
};
use crate::programs::{
    ChildProcess, PreparedProgram, ProgramRunTag, ResolvedProgram, kill_and_wait,
};

/// A program to start in the sandbox, with its arguments, working directory and environment.
pub(crate) struct SandboxedProgramStart {
    pub(crate) program: ResolvedProgram,
    pub(crate) args: Vec<OsString>,
    pub(crate) cwd: OwnedFd,
    pub(crate) env: BTreeMap<OsString, OsString>,
    pub(crate) is_fed: bool,
    pub(crate) grace: Duration,
    /// The tag that all processes of the program will carry.
    pub(crate) tag: ProgramRunTag,
}

/// The resources of a confined program that must stay open while it runs.
pub(crate) struct ConfinedProgramResources {
    /// The pipe on which the sandbox helper reports why the program did not start.
    failure_pipe: OwnedFd,
    /// The pipe on which the program's reaper reports the exit, if the program has a reaper.
    exit_pipe: Option<ExitStatusPipe>,
    /// The layers of the sandbox that confine the program.
    pub(crate) coverage: Arc<SandboxCoverage>,
    /// The forwarder of a program that may reach only some hosts.
    forwarder: Option<NetworkForwarder>,
    /// The file with the certificates that the program trusts, if its forwarder decrypts TLS.
    _certificates: Option<TrustedCertificatesFile>,
    /// The files with which a program uses SSH, if it may use SSH.
    _ssh_folder: Option<SshAccessFolder>,
    helper: Option<SandboxHelperProcess>,
    helper_key: SandboxHelperKey,
    idle_helpers: IdleSandboxHelpers,
    is_over: bool,
    _reserved: Option<FileNameReservation>,
}

impl ConfinedProgramResources {
    /// Returns `true` if a reaper runs beside the program. The reaper forwards signals to all
    /// processes of the program.
    pub(crate) fn has_reaper(&self) -> bool {
        self.exit_pipe.is_some()
    }

    /// Waits until the reaper reports that no process of the program is left. Never completes
    /// without a reaper.
    pub(crate) async fn wait_until_over(&self) -> io::Result<()> {
        match &self.exit_pipe {
            Some(end) => end.wait_until_over().await,
            None => std::future::pending().await,
        }
    }

    /// Returns the program's exit status after the reaper has reported that no process is left.
    pub(crate) fn reported_status(&self) -> Option<ExitStatus> {
        let end = self.exit_pipe.as_ref()?;
        end.status().filter(|_| end.is_over())
    }

    /// Returns the program's exit status after it has ended. `status` is the exit status of the
    /// process that the server started.
    pub(crate) fn finish(&mut self, status: ExitStatus) -> ExitStatus {
        let reported = self.exit_pipe.as_ref().and_then(ExitStatusPipe::status);
        // Without a report, the reaper was killed or could not start.
        self.is_over = reported.is_some() || !self.has_reaper();
        reported.unwrap_or(status)
    }

    /// Returns the program's network use so far, such as the hosts that were refused.
    pub(crate) fn network_use(&self) -> ProgramNetworkUsage {
        self.forwarder.as_ref().map(NetworkForwarder::network_use).unwrap_or_default()
    }

    /// Returns the error that kept the program from starting. Call this after the program has
    /// ended.
    pub(crate) fn failure(&self) -> Option<io::Error> {
        let failed = layers::read_failure(&self.failure_pipe, Some(&layers::NO_WAIT)).ok()??;
        Some(coverage::into_start_error(failed))
    }
}

impl Drop for ConfinedProgramResources {
    fn drop(&mut self) {
        let Some(helper) = self.helper.take().filter(|_| self.is_over) else { return };
        match self.forwarder {
            // The next program gets a network and a forwarder of its own.
            Some(_) => IdleSandboxHelpers::retire(helper),
            None => self.idle_helpers.give_back(helper, self.helper_key.clone()),
        }
    }
}

impl Sandbox {
    /// Starts the program `start` in the sandbox. If no idle sandbox helper fits, calls `begin` to
    /// start a new helper. Starts nothing if `may_start` fails. Blocks.
    pub(crate) fn confine(
        &self,
        inside: &ProgramConfinement,
        start: SandboxedProgramStart,
        variables: &ServerEnvironmentVariables,
        begin: impl Fn(PreparedProgram) -> io::Result<ChildProcess>,
        may_start: impl Fn() -> io::Result<()>,
    ) -> io::Result<(ChildProcess, ConfinedProgramResources)> {
        let capabilities = self.capabilities(&inside.workspace, variables)?;
        let coverage = capabilities.coverage(inside.profile);
        if self.0.settings.require == IncompleteSandboxPolicy::Strict && !coverage.is_complete() {
            return Err(io::Error::other(IncompleteSandboxError(coverage)));
        }
        let mut start = start;
        let (inspection, ssh) = match &inside.hosts {
            Some(access) => {
                self.check_network(capabilities, inside, &begin)?;
                start.env.extend(proxy_variables(&access.rules));
                let inspection = self.prepare_inspection(inside, access, variables)?;
                (inspection, self.prepare_ssh(inside, access, variables)?)
            }
            None => (None, None),
        };
        let (inspector, certificates) = inspection.unzip();
        let (agent, ssh_folder) = ssh.unzip();
        let mut visible_paths = inside.visible_paths.clone();
        if let Some(TrustedCertificatesFile { path, .. }) = &certificates {
            start.env.extend(trust_variables(path));
            visible_paths.push(path.clone());
        }
        if let Some(folder) = &ssh_folder {
            start.env.extend(folder.variables());
            visible_paths.push(folder.path.clone());
        }
        let wanted = SandboxViewRequest::new(inside).with_visible_paths(&visible_paths);
        let folder =
            ProgramStartFolder::new(&inside.workspace, start.cwd.as_fd(), &inside.visible_paths)?;
        let (birth, their_birth) = pipe_with(PipeFlags::CLOEXEC)?;
        let (end, their_end) = ExitStatusPipe::new()?;
        let workspace = folder.workspace.try_clone()?;
        let reserved = if capabilities.machine_view.needs_reservation(&wanted)
            && capabilities.layers.namespaces.is_some()
        {
            Some(self.reserve(capabilities, &folder)?)
        } else {
            if inside.may_write() {
                // Git may check out one of the names.
                self.release_names();
            }
            None
        };
        let is_fed = start.is_fed;
        let mut request = SandboxSpawnRequest {
            runs: inside
                .executables
                .as_ref()
                .map(|runs| runs.iter().map(OsStringBytes::from).collect()),
            grace_ms: u64::try_from(start.grace.as_millis()).unwrap_or(u64::MAX),
            tag: Some(start.tag.number()),
            program: Some(target_program(start)),
            ..folder.empty_request()
        };
        let mut plan = capabilities.plan(&capabilities.layers, &wanted, folder);
        plan.has_forwarder = inside.hosts.is_some();
        if ssh_folder.is_some() {
            plan.filters = capabilities.agent_filters();
        }
        let is_apart = plan.spaces.is_some();
        let like = SandboxHelperKey::new(plan);
        request.mounted_files.clone_from(&like.mounted_files);
        let task = SandboxHelperTask {
            request: seal(&request)?,
            failure_pipe: their_birth,
            exit_pipe: their_end,
            workspace,
            is_fed,
        };
        let (mut helper, child) = self.start_task(capabilities, &task, &like, begin, may_start)?;
        let forwarder = inside.hosts.as_ref();
        let forwarder =
            forwarder.map(|access| start_forwarder(&mut helper, access, inspector, agent));
        let forwarder = forwarder.transpose().inspect_err(|_| {
            // It may have ended by itself.
            let _ = kill_and_wait(child.pid);
        })?;
        // A process that becomes the program itself sends no reports.
        let end = is_apart.then_some(end);
        let coverage = Arc::new(coverage);
        let idle = self.0.idle.clone();
        let helper = Some(helper);
        let _reserved = reserved;
        Ok((
            child,
            ConfinedProgramResources {
                failure_pipe: birth,
                exit_pipe: end,
                coverage,
                forwarder,
                _certificates: certificates,
                _ssh_folder: ssh_folder,
                helper,
                helper_key: like,
                idle_helpers: idle,
                is_over: false,
                _reserved,
            },
        ))
    }

    /// Passes `task` to an idle sandbox helper with the key `like`, or to a new helper that `begin`
    /// starts. Calls `may_start` before a helper gets the task. Returns the helper and the process
    /// of the program.
    fn start_task(
        &self,
        capabilities: &SandboxCapabilities,
        task: &SandboxHelperTask,
        like: &SandboxHelperKey,
        begin: impl Fn(PreparedProgram) -> io::Result<ChildProcess>,
        may_start: impl Fn() -> io::Result<()>,
    ) -> io::Result<(SandboxHelperProcess, ChildProcess)> {
        while let Some(mut helper) = self.0.idle.take(like) {
            may_start()?;
            match helper.run_task(task) {
                Ok(Ok(child)) => return Ok((helper, child)),
                // Its preparation may have failed because the last program still used resources. It
                // has started nothing, so another helper can take over.
                Ok(Err(_)) => {}
                // Somebody has killed the helper.
                Err(err) if has_helper_ended(&err) => {}
                Err(err) => return Err(err),
            }
        }
        let mounts = self.0.idle.mount_generation();
        let groups = capabilities.create_groups(&capabilities.layers)?;
        let mut helper =
            SandboxHelperProcess::start(groups, mounts, like.plan.clone(), task, begin)?;
        may_start()?;
        let child = helper.run_task(task)?.map_err(coverage::into_start_error)?;
        Ok((helper, child))
    }

    /// Returns the sandbox capabilities of this system. The first call tests them.
    pub(super) fn capabilities(
        &self,
        workspace: &Root,
        variables: &ServerEnvironmentVariables,
    ) -> io::Result<&SandboxCapabilities> {
        let capabilities = self.0.capabilities.get_or_init(|| {
            self.detect_capabilities(workspace, variables)
                .map_err(|err| format!("programs cannot be sandboxed here: {err}"))
        });
        capabilities.as_ref().map_err(|why| io::Error::other(why.clone()))
    }

    fn detect_capabilities(
        &self,
        workspace: &Root,
        variables: &ServerEnvironmentVariables,
    ) -> io::Result<SandboxCapabilities> {
        let outside = self.0.unconfined_thread.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        let idle = self.0.idle.clone();
        let settings = self.0.settings.clone();
        let paths = self.0.paths.clone();
        let workspace = workspace.clone();
        let variables = variables.clone();
        outside.run(move || {
            idle.watch_mounts();
            SandboxCapabilities::detect(&settings, &paths, &workspace, &variables)
        })?
    }

    /// Returns `true` if a program with the confinement `inside` sees the file at `named`.
    ///
    /// # Errors
    /// This system cannot confine programs.
    pub(crate) fn shows_file(
        &self,
        inside: &ProgramConfinement,
        named: &Path,
        variables: &ServerEnvironmentVariables,
    ) -> io::Result<bool> {
        let capabilities = self.capabilities(&inside.workspace, variables)?;
        let Ok(real) = fs::canonicalize(named) else { return Ok(false) };
        let workspace = inside.workspace.path();
        Ok(capabilities.machine_view.shows_path(
            workspace,
            &SandboxViewRequest::new(inside),
            named,
            &real,
        ))
    }

    /// Returns `true` if confined programs in `workspace` may write to the folder `at`, under this
    /// path or its real path. `home` is the server's home folder.
    pub(crate) fn can_write(&self, workspace: &Root, home: Option<&Path>, at: &Path) -> bool {
        let real = fs::canonicalize(at);
        let ats = [Some(at), real.as_deref().ok()];
        let written = self.0.settings.writable_folders(home).into_iter();
        // A folder of the settings may be named through a link.
        let written = written.flat_map(|it| [fs::canonicalize(&it).unwrap_or_default(), it]);
        let written = written.filter(|it| !it.as_os_str().is_empty());
        let mut written = written.chain([workspace.path().to_owned()]);
        written.any(|it| ats.iter().flatten().any(|at| at.starts_with(&it)))
    }

    fn reserve(
        &self,
        capabilities: &SandboxCapabilities,
        folder: &ProgramStartFolder,
    ) -> io::Result<FileNameReservation> {
        let workspace = folder.workspace.try_clone()?;
        Ok(self.0.reserved.reserve(
            workspace,
            folder.workspace_identity,
            capabilities.machine_view.reserved_names(),
        ))
    }
}

/// Starts a program's forwarder, which listens in the network namespace of the sandbox helper
/// `helper`.
fn start_forwarder(
    helper: &mut SandboxHelperProcess,
    access: &Arc<ProgramHostAccess>,
    inspector: Option<TlsInspector>,
    agent: Option<RunSshAgent>,
) -> io::Result<NetworkForwarder> {
    let listener = helper.take_listener().ok_or(io::ErrorKind::NotConnected)?;
    NetworkForwarder::start(listener, access, inspector, agent)
}

fn target_program(start: SandboxedProgramStart) -> SandboxedExecutable {
    let SandboxedProgramStart { program, args, cwd: _, env, is_fed, grace: _, tag: _ } = start;
    let env = env.into_iter().map(|(mut name, value)| {
        name.push("=");
        name.push(value);
        OsStringBytes::from(name)
    });
    SandboxedExecutable {
        path: program.path.into(),
        identity: program.identity,
        args: std::iter::once(program.name.into())
            .chain(args.into_iter().map(OsStringBytes::from))
            .collect(),
        env: env.collect(),
        is_fed,
    }
}
