//! One case by one way: set up, performed, sealed and judged.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::case::{Assert, Case};
use super::client::{Client, open};
use super::ears::Ears;
use super::names::Form;
use super::server::{Launch, Server};
use super::spoken::{Said, Way};
use super::stage::{Stage, Tree};
use super::{cases, oracle, seals, setups};

/// A case being played.
pub(super) struct Play {
    pub(super) case: Case,
    pub(super) form: Form,
    pub(super) way: Way,
    pub(super) binary: PathBuf,
    pub(super) stage: Stage,
    pub(super) launch: Launch,
    pub(super) ears: Ears,
    /// What is not as it must be, a line each.
    pub(super) wrong: Vec<String>,
    /// What else there is to say.
    pub(super) notes: Vec<String>,
    /// Why it cannot be played here.
    pub(super) skipped: Option<String>,
    /// What was looked at while it was played, by the assert's word.
    pub(super) shown: BTreeMap<String, Result<(), String>>,
    /// All that was heard and is not the client's, which ends with it.
    pub(super) heard: Vec<u8>,
    /// How the neighbour was when the attack began, and what lay beside it.
    pub(super) outside: Option<(Tree, Vec<String>)>,
    pub(super) inside: Option<Tree>,
    /// What goes on beside it, and ends with it.
    pub(super) beside: Vec<Box<dyn Send>>,
    /// The most memory the server came to hold beyond what it held at first, in MiB.
    pub(super) grown_mb: u64,
    /// Whether the server may have ended by itself, or been killed.
    pub(super) may_die: bool,
}

/// What came of one call.
#[derive(Debug, Clone, Default)]
pub(super) struct Came {
    pub(super) tool: String,
    pub(super) said: Said,
    pub(super) took: Duration,
    /// The word of the audit record.
    pub(super) outcome: Option<String>,
    /// Whether the case's asserts are about it.
    pub(super) judged: bool,
}

/// How it went.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    pub(super) wrong: Vec<String>,
    pub(super) notes: Vec<String>,
    pub(super) skipped: Option<String>,
}

impl Play {
    pub(super) fn set(
        case: &Case,
        form: &Form,
        way: Way,
        binary: &Path,
        base: PathBuf,
    ) -> anyhow::Result<Self> {
        let stage = Stage::set(base)?;
        let launch = Launch::of(binary, &stage);
        let form = filled(form, &stage);
        Ok(Self {
            case: case.clone(),
            form,
            way,
            binary: binary.to_owned(),
            stage,
            launch,
            ears: Ears::default(),
            wrong: Vec::new(),
            notes: Vec::new(),
            skipped: None,
            shown: BTreeMap::new(),
            heard: Vec::new(),
            outside: None,
            inside: None,
            beside: Vec::new(),
            grown_mb: 0,
            may_die: false,
        })
    }

    /// Plays it; an error is one of the harness, or of the server, and as bad as any.
    pub(super) fn go(mut self) -> Verdict {
        if let Err(err) = self.whole() {
            self.wrong.push(format!("{err:#}"));
        }
        Verdict { wrong: self.wrong, notes: self.notes, skipped: self.skipped }
    }

    fn whole(&mut self) -> anyhow::Result<()> {
        setups::prepare(self)?;
        if self.skipped.is_some() {
            return Ok(());
        }
        self.remember()?;
        let came = match cases::without_server(self) {
            Some(came) => came?,
            None => self.served()?,
        };
        self.beside.clear();
        seals::look(self)?;
        oracle::judge(self, &came);
        Ok(())
    }

    /// Remembers how everything is that must stay so.
    pub(super) fn remember(&mut self) -> anyhow::Result<()> {
        self.outside = Some((self.outside_now()?, self.stage.names()?));
        if self.case.asserts.contains(&Assert::WorkspaceUnchanged) {
            self.inside = Some(Tree::of(&self.stage.ws)?);
        }
        Ok(())
    }

    pub(super) fn outside_now(&self) -> anyhow::Result<Tree> {
        let tree = Tree::of(&self.stage.evil)?;
        // A link in the workspace is the workspace's to replace.
        Ok(tree.leaving_links_of(&self.stage.evil.join("victim")))
    }

    fn served(&mut self) -> anyhow::Result<Vec<Came>> {
        let (mut server, mut client) = open(&self.launch, &self.stage, self.way)?;
        setups::once_started(self, &server, &mut client)?;
        let (before, _) = server.memory();
        let performed = cases::perform(self, &mut server, &mut client);
        if server.is_running() {
            let (_, most) = server.memory();
            self.grown_mb = self.grown_mb.max(most.saturating_sub(before) / 1024);
        }
        self.after(&mut server, &mut client);
        let mut came = match performed {
            Ok(came) => came,
            Err(err) => {
                let log = String::from_utf8_lossy(&server.log()).into_owned();
                let last = log.lines().last().unwrap_or_default();
                return Err(err.context(format!("the server said last: {last}")));
            }
        };
        oracle::with_records(self, &mut came);
        Ok(came)
    }

    /// Looks whether the server lives, stops it, and hears all it said.
    pub(super) fn after(&mut self, server: &mut Server, client: &mut Client) {
        if server.is_running() {
            match client.ping() {
                Ok(took) if took < Duration::from_secs(5) => {}
                Ok(took) => self.wrong.push(format!("alive: the cheapest call took {took:?}")),
                Err(err) if self.may_die => _ = err,
                Err(err) => self.wrong.push(format!("alive: {err:#}")),
            }
        } else if !self.may_die {
            self.wrong.push("alive: the server is gone".to_owned());
        }
        self.stop(server, client);
    }

    pub(super) fn stop(&mut self, server: &mut Server, client: &mut Client) {
        client.close();
        let ended = if client.way.over == super::spoken::Over::Stdio {
            client.rest();
            server.ended()
        } else {
            server.stop()
        };
        if let Err(why) = ended
            && !self.may_die
        {
            self.wrong.push(format!("its end: {why}"));
        }
        if client.is_line() {
            client.rest();
        }
        self.heard.append(&mut client.heard);
        self.heard.extend(server.log());
        for line in client.impure.drain(..) {
            self.wrong.push(format!("stdout held what is no message: {line:?}"));
        }
    }

    /// Says what an assert's word found.
    pub(super) fn show(&mut self, word: &str, found: Result<(), String>) {
        let known = self.shown.entry(word.to_owned()).or_insert(Ok(()));
        if known.is_ok() {
            *known = found;
        }
    }
}

/// Calls a tool, and says what came of it.
pub(super) fn call(client: &mut Client, tool: &str, input: &Value) -> anyhow::Result<Came> {
    let begun = Instant::now();
    let said = client.call(tool, input)?;
    let took = begun.elapsed();
    Ok(Came { tool: tool.to_owned(), said, took, outcome: None, judged: true })
}

fn filled(form: &Form, stage: &Stage) -> Form {
    Form { input: fill(&form.input, stage), ..form.clone() }
}

/// `value` with the names of the stage in all its texts.
pub(super) fn fill(value: &Value, stage: &Stage) -> Value {
    match value {
        Value::String(text) => Value::String(stage.fill(text)),
        Value::Array(all) => all.iter().map(|one| fill(one, stage)).collect(),
        Value::Object(all) => {
            all.iter().map(|(key, one)| (key.clone(), fill(one, stage))).collect()
        }
        other => other.clone(),
    }
}
