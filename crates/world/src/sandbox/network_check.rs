//! Checks before the first program runs that a sandbox profile with allowed hosts blocks all other
//! network access.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Mutex;

use rustix::event::Timespec;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::setsid;
use toolgate_contract::lock_mutex;

use super::capabilities::{ProgramStartFolder, SandboxCapabilities, ServerEnvironmentVariables};
use super::coverage::into_start_error;
use super::helper::GOT_THROUGH;
use super::plan::{NetworkTest, SandboxSpawnRequest, seal};
use super::settings::SandboxProfile;
use super::setup_step::{SandboxSetupFailure, SandboxSetupStep};
use super::standby::{SandboxHelperProcess, SandboxHelperTask};
use super::view::SandboxViewRequest;
use super::{ProgramConfinement, Sandbox, layers};
use crate::Root;
use crate::forwarder::{NetworkForwarder, ProgramHostAccess};
use crate::programs::{ChildProcess, PreparedProgram, kill_and_wait};

/// The time limit of testing the network of confined programs.
const TEST_TIMEOUT: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

/// The results of the network tests. The key is the profile, and `true` if programs may only read
/// the workspace. An error is a sentence about a connection that should have failed.
pub(super) type SandboxNetworkTestResults =
    Mutex<BTreeMap<(SandboxProfile, bool), Result<(), String>>>;

impl Sandbox {
    /// Checks the network of each profile for which the settings name hosts, and of the
    /// confinements `others`. Returns the checked profiles. Blocks. Call this function in a Tokio
    /// runtime.
    ///
    /// # Errors
    /// A connection that should be refused was possible, or the check could not be run.
    pub fn check_hosts(
        &self,
        workspace: &Root,
        variables: &ServerEnvironmentVariables,
        others: Vec<ProgramConfinement>,
    ) -> io::Result<Vec<SandboxProfile>> {
        let state = &self.0;
        let own = state.hosts.as_ref().map(|_| state.settings.profile);
        let ruled = state.rules.iter().filter(|rule| rule.hosts.is_some()).map(|rule| rule.profile);
        let named: BTreeSet<_> = own.into_iter().chain(ruled).collect();
        let named = named.into_iter();
        let named = named.filter_map(|it| Self::new_confinement(it, false, workspace));
        let begin = |image: PreparedProgram| image.start(&|| Ok(setsid().map(drop)?));
        let mut profiles = BTreeSet::new();
        for inside in named.chain(others) {
            let capabilities = self.capabilities(workspace, variables)?;
            self.check_network(capabilities, &inside, begin)?;
            profiles.insert(inside.profile);
        }
        Ok(profiles.into_iter().collect())
    }

    /// Checks that a forwarder for programs with the confinement `inside` lets an allowed
    /// connection through and refuses another connection. Stores the result, which later calls
    /// return. Blocks. `begin` starts the helper of the test.
    ///
    /// # Errors
    /// A connection that should be refused was possible, so no program may run in this profile. Or
    /// the test could not be run, and the next call repeats the test.
    pub(super) fn check_network(
        &self,
        capabilities: &SandboxCapabilities,
        inside: &ProgramConfinement,
        begin: impl Fn(PreparedProgram) -> io::Result<ChildProcess>,
    ) -> io::Result<()> {
        capabilities.check_own_network()?;
        self.test_once(inside, || test_network(capabilities, inside, begin))
    }

    /// Returns the result of `test` for programs with the confinement `inside`. Stores the first
    /// result, which later calls return without a test.
    fn test_once(
        &self,
        inside: &ProgramConfinement,
        test: impl FnOnce() -> io::Result<Result<(), String>>,
    ) -> io::Result<()> {
        // Programs that start at the same time wait for one test.
        let mut tests = lock_mutex(&self.0.network_tests);
        let key = (inside.profile, inside.read_only);
        let result = match tests.get(&key) {
            Some(result) => result.clone(),
            None => {
                let result = test()?;
                tests.insert(key, result.clone());
                result
            }
        };
        result.map_err(io::Error::other)
    }
}

/// Tests the network of programs with the confinement `inside`. The inner error says that a
/// forbidden connection succeeded. The outer error says that the test could not be run.
fn test_network(
    capabilities: &SandboxCapabilities,
    inside: &ProgramConfinement,
    begin: impl Fn(PreparedProgram) -> io::Result<ChildProcess>,
) -> io::Result<Result<(), String>> {
    let [(_allowed, allowed_port), (refused, refused_port)] = [open_target()?, open_target()?];
    let allowed =
        ProgramHostAccess::parse(&[format!("127.0.0.1:{allowed_port}")], "the network test");
    let access = allowed.map_err(io::Error::other)?.ok_or(io::ErrorKind::InvalidInput)?;
    let folder = ProgramStartFolder::at_workspace(&inside.workspace)?;
    let workspace = folder.workspace.try_clone()?;
    let network_test = Some(NetworkTest { allowed_port, refused_port });
    let request = SandboxSpawnRequest { network_test, ..folder.empty_request() };
    let mut plan =
        capabilities.plan(&capabilities.layers, &SandboxViewRequest::new(inside), folder);
    plan.has_forwarder = true;
    let (failure_pipe, their_failure_pipe) = pipe_with(PipeFlags::CLOEXEC)?;
    let (_exit_pipe, their_exit_pipe) = pipe_with(PipeFlags::CLOEXEC)?;
    let task = SandboxHelperTask {
        request: seal(&request)?,
        failure_pipe: their_failure_pipe,
        exit_pipe: their_exit_pipe,
        workspace,
        is_fed: false,
    };
    let groups = capabilities.create_groups(&capabilities.layers)?;
    let mut helper = SandboxHelperProcess::start(groups, 0, plan, &task, begin)?;
    let child = helper.run_task(&task)?.map_err(into_start_error)?;
    drop(task);
    let listener = helper.take_listener().ok_or(io::ErrorKind::NotConnected);
    let forwarder = listener
        .map_err(io::Error::from)
        .and_then(|it| NetworkForwarder::start(it, &access, None, None));
    // The test ends by itself if there is no forwarder.
    let failure = layers::read_failure(&failure_pipe, Some(&TEST_TIMEOUT));
    // It may have ended by itself.
    let _ = kill_and_wait(child.pid);
    drop(forwarder?);
    judge_test(failure?, refused.accept().is_ok(), inside.profile)
}

/// Returns the result of a network test that ended with `failure`, or without a failure.
/// `is_reached` is `true` if a connection that must be refused arrived at its target.
fn judge_test(
    failure: Option<SandboxSetupFailure>,
    is_reached: bool,
    profile: SandboxProfile,
) -> io::Result<Result<(), String>> {
    match failure {
        None if !is_reached => Ok(Ok(())),
        None => Ok(Err(leak_message(profile))),
        Some(SandboxSetupFailure { step: SandboxSetupStep::NetworkTest, cause })
            if cause.raw_os_error() == Some(GOT_THROUGH) =>
        {
            Ok(Err(leak_message(profile)))
        }
        Some(failure) => Err(into_start_error(failure)),
    }
}

fn leak_message(profile: SandboxProfile) -> String {
    format!(
        "nothing runs in the sandbox profile `{}` with `hosts`: in a test, a connection that must \
         be refused was allowed; check which software changes the network of this system",
        profile.name()
    )
}

/// Opens a listener on the machine's loopback interface, as the target of a network test. Returns
/// the listener and its port.
fn open_target() -> io::Result<(TcpListener, u16)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port();
    Ok((listener, port))
}

#[cfg(test)]
mod tests {
    use super::super::helper::test_network_from_inside;
    use super::*;
    use crate::sandbox::{SandboxPaths, SandboxSettings};

    #[test]
    fn a_connection_that_gets_through_keeps_all_programs_of_the_profile_from_running() {
        // This process has the machine's network, so its direct connections get through.
        let [(_allowed, allowed_port), (refused, refused_port)] =
            [open_target().unwrap(), open_target().unwrap()];
        let cause = test_network_from_inside(NetworkTest { allowed_port, refused_port });
        let failed = || {
            let cause = io::Error::from_raw_os_error(GOT_THROUGH);
            Some(SandboxSetupFailure { step: SandboxSetupStep::NetworkTest, cause })
        };
        assert_eq!(cause.unwrap_err().raw_os_error(), Some(GOT_THROUGH));
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(folder.path()).unwrap();
        let sandbox = Sandbox::new(&SandboxSettings::default(), SandboxPaths::default()).unwrap();
        let inside = sandbox.confinement_with(SandboxProfile::Workspace, &root).unwrap();
        let judge = || judge_test(failed(), false, inside.profile);
        let message = sandbox.test_once(&inside, judge).unwrap_err().to_string();
        assert!(
            message.starts_with("nothing runs in the sandbox profile `workspace`"),
            "{message}"
        );
        // The next program does not run either, and needs no test.
        let again = sandbox.test_once(&inside, || unreachable!("the result is kept"));
        assert_eq!(again.unwrap_err().to_string(), message);
        // Programs of other profiles are tested for themselves.
        let other = sandbox.confinement_with(SandboxProfile::ReadOnly, &root).unwrap();
        assert!(sandbox.test_once(&other, || judge_test(None, false, other.profile)).is_ok());
        drop(refused);
    }

    #[test]
    fn a_test_is_judged_by_its_report_and_by_the_target_that_must_not_be_reached() {
        let judge = |failure, is_reached| {
            judge_test(failure, is_reached, SandboxProfile::Workspace).map(|it| it.is_ok()).ok()
        };
        let failure = |code| {
            let cause = io::Error::from_raw_os_error(code);
            Some(SandboxSetupFailure { step: SandboxSetupStep::NetworkTest, cause })
        };
        assert_eq!(judge(None, false), Some(true));
        assert_eq!(judge(None, true), Some(false));
        assert_eq!(judge(failure(GOT_THROUGH), false), Some(false));
        // An allowed connection that fails is a broken test, which is repeated.
        assert_eq!(judge(failure(libc::ECONNREFUSED), false), None);
    }
}
