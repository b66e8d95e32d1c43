//! One attempt at an attack case: its setup, the attack, the checks and the verdict.

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
use super::server::{AllocatedMemorySampler, AttackServerLaunch, AttackedServer};
use super::variants::AttackCallVariant;
use super::{invariants, oracle, perform, setup};

/// Attempt at an attack case over one dialect and transport, with everything recorded so far.
pub(super) struct AttackAttempt {
    pub(super) case: AttackCase,
    pub(super) variant: AttackCallVariant,
    pub(super) route: DialectOverTransport,
    pub(super) length: AttackAttemptLength,
    pub(super) binary: PathBuf,
    pub(super) folders: AttackFolders,
    pub(super) launch: AttackServerLaunch,
    pub(super) listeners: AttackListeners,
    /// Failures of the server or of the test program, one line each.
    pub(super) failures: Vec<String>,
    /// Details of the attempt that are not failures, for example counts.
    pub(super) notes: Vec<String>,
    /// Reason why this machine cannot run the attempt, or `None` if it can.
    pub(super) skip_reason: Option<String>,
    /// Findings that the code of the case recorded, by the name of the assertion that checks them.
    pub(super) findings: BTreeMap<String, Result<(), String>>,
    /// Bytes that closed clients received, and the log of the stopped server.
    pub(super) received: Vec<u8>,
    /// State of the folder outside the workspace (`{EVIL}` in cases) before the attack, and the
    /// names of files and folders beside the workspace.
    pub(super) outside_before: Option<(FolderSnapshot, Vec<String>)>,
    pub(super) workspace_before: Option<FolderSnapshot>,
    /// Threads and processes that run during the attempt. Dropping a value stops its thread or
    /// process.
    pub(super) background: Vec<Box<dyn Send>>,
    /// Peak memory of the server during the attack minus its memory before the attack, in MiB.
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
    /// Outcome of the call in its audit record, if there is a record.
    pub(super) recorded_outcome: Option<String>,
    /// True if the assertions of the attack case apply to this call.
    pub(super) is_judged: bool,
}

/// Results of the calls of an attempt, or the error that kept the test program from making them.
pub(super) type CallResults = anyhow::Result<Vec<AttackCallResult>>;

/// Verdict about an attempt. The attempt succeeded if the verdict has no failures.
#[derive(Debug, Default)]
pub(super) struct AttackAttemptVerdict {
    pub(super) failures: Vec<String>,
    pub(super) notes: Vec<String>,
    pub(super) skip_reason: Option<String>,
}

impl AttackAttemptVerdict {
    /// Returns a failed verdict for an attempt that the test program could not make because of
    /// `err`.
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

    /// Runs the attempt and returns the verdict. Errors of the test program count as failures, too.
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

    /// Returns the current state of the folder outside the workspace (`{EVIL}` in cases).
    pub(super) fn outside_snapshot(&self) -> anyhow::Result<FolderSnapshot> {
        let snapshot = FolderSnapshot::take(&self.folders.evil)?;
        // The server may replace a hard link in the workspace.
        Ok(snapshot.ignoring_links_of(&self.folders.evil.join("victim")))
    }

    fn run_against_server(&mut self) -> CallResults {
        let (mut server, mut client) = start_and_connect(&self.launch, &self.folders, self.route)?;
        setup::after_start(self, &server, &mut client)?;
        let memory = AllocatedMemorySampler::start(&server);
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

    /// Checks that the server still answers, and stops it. Keeps its log and all bytes that the
    /// client received.
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

    /// Stops the server. Keeps its log and all bytes that the client received.
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

    /// Records a finding for the assertion `name`. Once an error is recorded, later findings do not
    /// replace it.
    pub(super) fn record_finding(&mut self, name: &str, finding: Result<(), String>) {
        let recorded = self.findings.entry(name.to_owned()).or_insert(Ok(()));
        if recorded.is_ok() {
            *recorded = finding;
        }
    }
}

/// Calls a tool and measures the duration. The assertions of the case will check the result.
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

/// Replaces the placeholders of the attack cases, such as `{WS}`, in all strings of `value`.
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
