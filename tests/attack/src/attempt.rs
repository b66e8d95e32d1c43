//! Attempt at one attack case: set up, performed, checked and judged.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::attempt_process::AttackAttemptLength;
use super::case::{AttackCase, AttackCaseAssertion};
use super::client::{AttackClient, start_and_connect};
use super::dialects::{AttackResponse, AttackTransport, DialectOverTransport};
use super::folders::{AttackFolders, FolderSnapshot};
use super::listeners::AttackListeners;
use super::server::{AllocatedMemoryWatch, AttackServerLaunch, AttackedServer};
use super::variants::AttackCallVariant;
use super::{invariants, oracle, perform, setup};

/// A running attempt of an attack, over one dialect and transport.
pub(super) struct AttackAttempt {
    pub(super) case: AttackCase,
    pub(super) variant: AttackCallVariant,
    pub(super) route: DialectOverTransport,
    pub(super) length: AttackAttemptLength,
    pub(super) binary: PathBuf,
    pub(super) folders: AttackFolders,
    pub(super) launch: AttackServerLaunch,
    pub(super) listeners: AttackListeners,
    /// Failures of the server or of the harness, one line each.
    pub(super) failures: Vec<String>,
    /// Details of the attempt that are no failures, for example counts.
    pub(super) notes: Vec<String>,
    /// The reason why this machine cannot run the attempt.
    pub(super) skip_reason: Option<String>,
    /// Findings of the case's code, by the name of the assertion.
    pub(super) findings: BTreeMap<String, Result<(), String>>,
    /// Bytes from clients that are closed, and from the log of the server.
    pub(super) received: Vec<u8>,
    /// The state of `{EVIL}` before the attack, and the names beside the workspace.
    pub(super) outside_before: Option<(FolderSnapshot, Vec<String>)>,
    pub(super) workspace_before: Option<FolderSnapshot>,
    /// Work that runs in the background. Dropping this value stops the work.
    pub(super) background: Vec<Box<dyn Send>>,
    /// The peak memory of the server above its memory before the attack.
    pub(super) memory_growth_mib: u64,
    /// True if the server may exit, or be killed, during the attack.
    pub(super) may_exit: bool,
}

/// Result of one tool call of an attack.
#[derive(Debug, Clone, Default)]
pub(super) struct AttackCallResult {
    pub(super) tool: String,
    pub(super) response: AttackResponse,
    pub(super) elapsed: Duration,
    /// The outcome in the audit record of the call.
    pub(super) recorded_outcome: Option<String>,
    /// True if the case's assertions apply to this call.
    pub(super) is_judged: bool,
}

/// The results of the calls of an attempt, or the reason why the harness could not make them.
pub(super) type CallResults = anyhow::Result<Vec<AttackCallResult>>;

/// The result of an attempt. It succeeded if there are no failures.
#[derive(Debug, Default)]
pub(super) struct AttackAttemptVerdict {
    pub(super) failures: Vec<String>,
    pub(super) notes: Vec<String>,
    pub(super) skip_reason: Option<String>,
}

impl AttackAttemptVerdict {
    /// Returns the verdict of an attempt that the harness could not make.
    pub(super) fn harness_failure(err: &anyhow::Error) -> Self {
        Self { failures: vec![format!("the harness: {err:#}")], ..Self::default() }
    }
}

impl AttackAttempt {
    pub(super) fn new(
        case: &AttackCase,
        variant: &AttackCallVariant,
        route: DialectOverTransport,
        binary: &Path,
        base: PathBuf,
    ) -> anyhow::Result<Self> {
        let folders = AttackFolders::create(base)?;
        let launch = AttackServerLaunch::new(binary, &folders);
        let variant =
            AttackCallVariant { input: fill(&variant.input, &folders), ..variant.clone() };
        Ok(Self {
            case: case.clone(),
            variant,
            route,
            length: AttackAttemptLength::Full,
            binary: binary.to_owned(),
            folders,
            launch,
            listeners: AttackListeners::default(),
            failures: Vec::new(),
            notes: Vec::new(),
            skip_reason: None,
            findings: BTreeMap::new(),
            received: Vec::new(),
            outside_before: None,
            workspace_before: None,
            background: Vec::new(),
            memory_growth_mib: 0,
            may_exit: false,
        })
    }

    /// Runs the attempt. An error of the harness or of the server is a failure, too.
    pub(super) fn run(mut self) -> AttackAttemptVerdict {
        if let Err(err) = self.run_steps() {
            self.failures.push(format!("{err:#}"));
        }
        AttackAttemptVerdict {
            failures: self.failures,
            notes: self.notes,
            skip_reason: self.skip_reason,
        }
    }

    fn run_steps(&mut self) -> anyhow::Result<()> {
        setup::prepare(self)?;
        if self.skip_reason.is_some() {
            return Ok(());
        }
        self.take_snapshots()?;
        let results = match perform::perform_without_server(self) {
            Some(results) => results?,
            None => self.run_against_server()?,
        };
        self.background.clear();
        invariants::check_after_exit(self)?;
        oracle::judge(self, &results);
        Ok(())
    }

    fn take_snapshots(&mut self) -> anyhow::Result<()> {
        self.outside_before = Some((self.outside_snapshot()?, self.folders.sibling_names()?));
        if self.case.assertions.contains(&AttackCaseAssertion::WorkspaceUnchanged) {
            self.workspace_before = Some(FolderSnapshot::take(&self.folders.ws)?);
        }
        Ok(())
    }

    /// Returns the present state of `{EVIL}`.
    pub(super) fn outside_snapshot(&self) -> anyhow::Result<FolderSnapshot> {
        let snapshot = FolderSnapshot::take(&self.folders.evil)?;
        // The server may replace a hard link in the workspace.
        Ok(snapshot.ignoring_links_of(&self.folders.evil.join("victim")))
    }

    fn run_against_server(&mut self) -> CallResults {
        let (mut server, mut client) = start_and_connect(&self.launch, &self.folders, self.route)?;
        setup::after_start(self, &server, &mut client)?;
        let memory = AllocatedMemoryWatch::start(&server);
        let performed = perform::perform(self, &mut server, &mut client);
        self.memory_growth_mib = self.memory_growth_mib.max(memory.growth_mib());
        self.check_alive_and_stop(&mut server, &mut client);
        let mut results = match performed {
            Ok(results) => results,
            Err(err) => {
                let log = String::from_utf8_lossy(&server.log()).into_owned();
                let last = log.lines().last().unwrap_or_default();
                return Err(err.context(format!("last line of the server's log: {last}")));
            }
        };
        oracle::add_recorded_outcomes(self, &mut results);
        Ok(results)
    }

    /// Checks that the server still answers, stops it, and keeps all that it sent and logged.
    pub(super) fn check_alive_and_stop(
        &mut self,
        server: &mut AttackedServer,
        client: &mut AttackClient,
    ) {
        if server.is_running() {
            match client.ping() {
                Ok(elapsed) if elapsed < Duration::from_secs(5) => {}
                Ok(elapsed) => {
                    self.failures.push(format!("alive: the cheapest call took {elapsed:?}"));
                }
                Err(err) if self.may_exit => _ = err,
                Err(err) => self.failures.push(format!("alive: {err:#}")),
            }
        } else if !self.may_exit {
            self.failures.push("alive: the server has exited".to_owned());
        }
        self.stop(server, client);
    }

    /// Stops the server, and keeps all that it sent and logged.
    pub(super) fn stop(&mut self, server: &mut AttackedServer, client: &mut AttackClient) {
        client.close();
        let exit = if client.route.transport == AttackTransport::Stdio {
            client.drain();
            server.wait_for_exit()
        } else {
            server.stop()
        };
        if let Err(reason) = exit
            && !self.may_exit
        {
            self.failures.push(format!("stopping: {reason}"));
        }
        if client.is_stream() {
            client.drain();
        }
        self.received.append(&mut client.received);
        self.received.extend(server.log());
        for line in client.non_messages.drain(..) {
            self.failures.push(format!("stdout had a line that is no message: {line:?}"));
        }
    }

    /// Records a finding for the assertion `name`. A bad finding stays, whatever follows it.
    pub(super) fn record_finding(&mut self, name: &str, finding: Result<(), String>) {
        let recorded = self.findings.entry(name.to_owned()).or_insert(Ok(()));
        if recorded.is_ok() {
            *recorded = finding;
        }
    }
}

/// Calls a tool and measures how long it takes. The assertions apply to the result.
pub(super) fn call(
    client: &mut AttackClient,
    tool: &str,
    input: &Value,
) -> anyhow::Result<AttackCallResult> {
    let started = Instant::now();
    let response = client.call(tool, input)?;
    let elapsed = started.elapsed();
    let tool = tool.to_owned();
    Ok(AttackCallResult { tool, response, elapsed, recorded_outcome: None, is_judged: true })
}

/// Replaces the placeholders in all strings of `value`.
pub(super) fn fill(value: &Value, folders: &AttackFolders) -> Value {
    match value {
        Value::String(text) => Value::String(folders.fill(text)),
        Value::Array(all) => all.iter().map(|one| fill(one, folders)).collect(),
        Value::Object(all) => {
            all.iter().map(|(key, one)| (key.clone(), fill(one, folders))).collect()
        }
        other => other.clone(),
    }
}
