//! Checks that a profile with hosts confines the network, before the first program runs in it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Mutex, PoisonError};

use rustix::event::Timespec;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::setsid;

use super::capabilities::{ProgramStartFolder, SandboxCapabilities, ServerEnvironmentVariables};
use super::coverage::into_start_error;
use super::helper::GOT_THROUGH;
use super::plan::{NetworkTest, SandboxSpawnRequest, seal};
use super::settings::SandboxProfile;
use super::setup_step::{SandboxSetupFailure, SandboxSetupStep};
use super::standby::{SandboxHelperTask, StandbySandboxHelper};
use super::view::SandboxViewRequest;
use super::{ProgramConfinement, Sandbox, layers};
use crate::Root;
use crate::forwarder::{NetworkForwarder, ProgramHostAccess};
use crate::programs::{ChildProcess, PreparedProgram, kill_and_wait};

/// The time limit of testing the network of confined programs.
const TEST_TIMEOUT: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

/// The results of the network tests, for each profile and for programs that may only read the
/// workspace.
pub(super) type SandboxNetworkTestResults =
    Mutex<BTreeMap<(SandboxProfile, bool), Result<(), String>>>;

impl Sandbox {
    /// Checks the network of each profile for which the settings name hosts, and returns those
    /// profiles. Blocks, and needs a runtime.
    ///
    /// # Errors
    /// A connection that should be refused got through, or the check could not be run.
    pub fn check_hosts(
        &self,
        workspace: &Root,
        variables: &ServerEnvironmentVariables,
    ) -> io::Result<Vec<SandboxProfile>> {
        let state = &self.0;
        let own = state.hosts.as_ref().map(|_| state.settings.profile);
        let ruled = state.rules.iter().filter(|rule| rule.hosts.is_some()).map(|rule| rule.profile);
        let profiles: BTreeSet<_> = own.into_iter().chain(ruled).collect();
        let begin = |image: PreparedProgram| image.start(&|| Ok(setsid().map(drop)?));
        for profile in &profiles {
            let confinement = Self::new_confinement(*profile, false, workspace);
            let Some(inside) = confinement else { continue };
            let capabilities = self.capabilities(workspace, variables)?;
            self.check_network(capabilities, &inside, begin)?;
        }
        Ok(profiles.into_iter().collect())
    }

    /// Checks that a forwarder under the sandbox profile of `inside` lets an allowed connection
    /// through and refuses another. The result is stored, and later calls return it. Blocks.
    /// `begin` starts the helper of the test.
    ///
    /// # Errors
    /// A connection that should be refused got through, so no program may run in this profile. Or
    /// the test could not be run. Then the next call repeats it.
    pub(super) fn check_network(
        &self,
        capabilities: &SandboxCapabilities,
        inside: &ProgramConfinement,
        begin: impl Fn(PreparedProgram) -> io::Result<ChildProcess>,
    ) -> io::Result<()> {
        capabilities.check_own_network()?;
        // Programs that start at the same time wait for one test.
        let mut tests = self.0.network_tests.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (inside.profile, inside.read_only);
        let result = match tests.get(&key) {
            Some(result) => result.clone(),
            None => {
                let result = test_network(capabilities, inside, begin)?;
                tests.insert(key, result.clone());
                result
            }
        };
        result.map_err(io::Error::other)
    }
}

/// Tests the network of programs like those of `inside`. The inner error says that a connection got
/// through.
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
    let mut helper = StandbySandboxHelper::start(groups, 0, plan, &task, begin)?;
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
    match failure? {
        None if refused.accept().is_err() => Ok(Ok(())),
        None => Ok(Err(leak_message(inside.profile))),
        Some(SandboxSetupFailure { step: SandboxSetupStep::NetworkTest, cause })
            if cause.raw_os_error() == Some(GOT_THROUGH) =>
        {
            Ok(Err(leak_message(inside.profile)))
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

/// Opens a listener on the machine's loopback interface. Returns its port, too.
fn open_target() -> io::Result<(TcpListener, u16)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port();
    Ok((listener, port))
}
