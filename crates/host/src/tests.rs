//! The host, asked as a dialect asks it: what it answers, and what it leaves on record.
#![allow(clippy::disallowed_methods, reason = "a test looks at the files it made")]

mod rounds;
mod library;
mod policy;
mod jobs;
mod ahead;
mod offered;

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;
use toolgate_contract::{
    Answer, AnyTool, Askable, Asker, CallError, Caller, Choice, Ctx, Effects, Given, Job, JobTerms,
    LeftFile, Question, Questions, Request, Shown, Stream, Told, Tool, ToolError, erase,
};

use crate::{
    Asked, Audit, AuditDestination, AuditFile, Catalog, Gate, Host, JobSettings, JobsHandle,
    Library, Limits, Policy, PolicyEffect, PolicyRule, Settings, job_resources,
};

/// A host in a folder of its own.
struct House {
    host: Host,
    folder: Arc<TempDir>,
}

/// What a house is built of.
struct Plan {
    folder: Arc<TempDir>,
    tools: Vec<Arc<dyn AnyTool>>,
    library: Library,
    deny: Vec<String>,
    confirm: Vec<String>,
    rules: Vec<PolicyRule>,
    settings: Settings,
    limits: Limits,
    handle: JobsHandle,
}

impl Plan {
    fn new() -> Self {
        Self {
            folder: Arc::new(tempfile::tempdir().expect("a folder")),
            tools: vec![erase(Asks), erase(Prints), erase(Looks), erase(Mirrors)],
            library: Library::default(),
            deny: Vec::new(),
            confirm: Vec::new(),
            rules: Vec::new(),
            settings: Settings { cancel_grace: Duration::from_millis(10), ..Settings::default() },
            limits: Limits::new(8, 8, 8, Duration::from_secs(1)),
            handle: JobsHandle::default(),
        }
    }

    fn build(self) -> House {
        let Self { folder, tools, mut library, deny, confirm, rules, settings, limits, handle } =
            self;
        let policy = Policy::new(&["*".to_owned()], &deny, Effects::Runs).expect("sound rules");
        let policy = policy.with_confirm(&confirm).expect("sound rules");
        let policy = policy.with_rules(&rules, PolicyEffect::Allow).expect("sound rules");
        let log =
            AuditDestination::File(AuditFile::at(folder.path().join("audit.jsonl"), folder.path()));
        let audit = Audit::open(&log, false).expect("a log");
        library.resources.extend(audit.resources());
        library.resources.push(job_resources(&handle));
        let catalog = Catalog::new(tools).expect("sound tools");
        let gate = Gate::new(catalog, policy, limits, audit, settings).with_library(library);
        let jobs = JobSettings {
            folder: folder.path().join("jobs"),
            running_max: 4,
            running_each: 4,
            queued_max: 16,
            queued_each: 16,
            keep: Duration::from_secs(3600),
            keep_max: Duration::from_secs(3600),
            ended_max: 100,
            output_bytes_max: 1 << 20,
            files_bytes_max: 64 << 20,
            mark: 1,
            end_left: Arc::new(|_| {}),
        };
        House { host: Host::new(gate, Some(jobs)).with_job_tools(&handle), folder }
    }
}

impl House {
    async fn ask(&self, request: Request) -> Result<Answer, CallError> {
        self.host.answer(asked(request)).await
    }

    /// What is on record, a line a call: its tool and its outcome.
    fn records(&self) -> Vec<String> {
        self.host.flush();
        let log = std::fs::read_to_string(self.folder.path().join("audit.jsonl")).expect("a log");
        let line = |line: &str| {
            let record: Value = serde_json::from_str(line).expect("JSON");
            let of = |name: &str| record[name].as_str().expect("text").to_owned();
            format!("{} {}", of("tool"), of("outcome"))
        };
        log.lines().map(line).collect()
    }

    /// Starts `tool` as a job of somebody who can be asked.
    async fn start(&self, tool: &str, input: Value) -> Job {
        let tool = tool.to_owned();
        let terms = JobTerms::default();
        let request = Request::StartJob { tool, input, terms };
        let asker = Asker::again(form_alone(), Given::new());
        job(self.host.answer(Asked { asker, ..asked(request) }).await)
    }

    /// The job once it is as `wanted`, looked at whenever something happens to it.
    async fn once(&self, id: &str, wanted: impl Fn(&Job) -> bool) -> Job {
        let jobs = self.host.jobs().expect("jobs");
        let (_, mut watch) = jobs.watch(None, id, 0).await.expect("a watch");
        let found = async {
            loop {
                let job = jobs.get(None, id).await.expect("the job");
                if wanted(&job) {
                    return job;
                }
                watch.next().await.expect("it has not ended otherwise");
            }
        };
        tokio::time::timeout(Duration::from_secs(20), found).await.expect("it comes to that")
    }

    async fn ended(&self, id: &str) -> Job {
        self.once(id, |job| job.state.is_terminal()).await
    }
}

fn ada() -> Caller {
    Caller::named("ada")
}

fn asked(request: Request) -> Asked {
    Asked::plain(request, ada(), "test")
}

fn call(tool: &str, input: Value) -> Request {
    Request::CallTool { tool: tool.to_owned(), input }
}

fn read(uri: &str) -> Request {
    Request::ReadResource { uri: uri.to_owned() }
}

fn job(answer: Result<Answer, CallError>) -> Job {
    match answer {
        Ok(Answer::Job(job)) => *job,
        Ok(_) => panic!("it answers with something else"),
        Err(err) => panic!("{err}"),
    }
}

/// What was shown.
fn text(answer: Result<Answer, CallError>) -> String {
    match answer {
        Ok(Answer::Output(output)) => output.content[0].as_text(),
        Ok(_) => panic!("it answers with something else"),
        Err(err) => panic!("{err}"),
    }
}

fn form_alone() -> Askable {
    Askable { form: true, ..Askable::default() }
}

fn accepted(value: &str) -> Told {
    let content = json!({ "v": value });
    Told::Choice(Choice::Accepted(content.as_object().expect("an object").clone()))
}

/// A yes, and no more.
fn agreed() -> Told {
    Told::Choice(Choice::Accepted(serde_json::Map::new()))
}

fn given<const N: usize>(answers: [(&str, Told); N]) -> Given {
    answers.into_iter().map(|(key, told)| (key.to_owned(), told)).collect()
}

/// Asks, round by round, all of a round at once.
struct Asks;

#[derive(Deserialize, JsonSchema)]
struct Rounds {
    rounds: Vec<Vec<String>>,
}

impl Tool for Asks {
    const NAME: &'static str = "t.asks";
    const TITLE: &'static str = "Asks";
    const ABOUT: &'static str = "Asks and tells the answers.";
    const EFFECTS: Effects = Effects::Reads;
    const IDEMPOTENT: bool = true;
    type Input = Rounds;
    type Output = Shown;

    async fn run(&self, ctx: &Ctx, input: Rounds) -> Result<Shown, ToolError> {
        let mut answers = Vec::new();
        for keys in input.rounds {
            let form = |key: String| {
                let schema = json!({
                    "type": "object", "properties": { "v": { "type": "string" } }, "required": ["v"],
                });
                (key.clone(), Question::Form { message: key, schema })
            };
            let given = ctx.asker.ask(keys.into_iter().map(form).collect::<Questions>()).await?;
            answers.extend(given.into_iter().map(|(key, told)| match told {
                Told::Choice(Choice::Accepted(content)) => format!("{key}={}", content["v"]),
                other => format!("{key}: {other:?}"),
            }));
        }
        Ok(Shown::text(answers.join(" ")))
    }
}

/// Prints, leaves a file, and asks before it ends if it is to wait.
struct Prints;

#[derive(Deserialize, JsonSchema)]
struct Printed {
    text: String,
    times: usize,
    #[serde(default)]
    waits: bool,
}

impl Tool for Prints {
    const NAME: &'static str = "t.prints";
    const TITLE: &'static str = "Prints";
    const ABOUT: &'static str = "Prints.";
    const EFFECTS: Effects = Effects::Runs;
    type Input = Printed;
    type Output = Shown;

    async fn run(&self, ctx: &Ctx, input: Printed) -> Result<Shown, ToolError> {
        for _ in 0..input.times {
            ctx.chunk(Stream::Stdout, input.text.clone());
        }
        for (path, bytes) in [("out/a plot.png", &b"\x89PNG\0"[..]), ("notes.txt", b"done")] {
            let mut file = tempfile::tempfile().expect("a file");
            std::io::Write::write_all(&mut file, bytes).expect("it is written");
            ctx.left(LeftFile { path: path.to_owned(), handle: Arc::new(file) });
        }
        if input.waits {
            ctx.form("go", "Go on?", json!({ "type": "object" })).await?;
            ctx.chunk(Stream::Stdout, "after".to_owned());
        }
        Ok(Shown::text("printed"))
    }
}

/// Looks before it begins.
struct Looks;

#[derive(Deserialize, JsonSchema)]
struct How {
    how: String,
}

impl Tool for Looks {
    const NAME: &'static str = "t.looks";
    const TITLE: &'static str = "Looks";
    const ABOUT: &'static str = "Looks before it begins.";
    const EFFECTS: Effects = Effects::Reads;
    const DEADLINE: Option<Duration> = Some(Duration::from_secs(5));
    const LOOKS_BEFORE: bool = true;
    type Input = How;
    type Output = Shown;

    async fn before(&self, ctx: &Ctx, input: &How) -> Result<(), ToolError> {
        match input.how.as_str() {
            "panics" => panic!("as it was told"),
            "hangs" => std::future::pending().await,
            "asks" => ctx.form("sure", "Sure?", json!({ "type": "object" })).await.map(drop),
            _ => Ok(()),
        }
    }

    async fn run(&self, _ctx: &Ctx, _input: How) -> Result<Shown, ToolError> {
        Ok(Shown::text("done"))
    }
}

/// Has an argument that is said twice.
struct Mirrors;

#[derive(Deserialize, JsonSchema)]
struct Region {
    #[schemars(extend("x-mcp-header" = "Region"))]
    region: String,
}

impl Tool for Mirrors {
    const NAME: &'static str = "t.mirrors";
    const TITLE: &'static str = "Mirrors";
    const ABOUT: &'static str = "Has an argument that is said twice.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = Region;
    type Output = Shown;

    async fn run(&self, _ctx: &Ctx, input: Region) -> Result<Shown, ToolError> {
        Ok(Shown::text(input.region))
    }
}

#[tokio::test]
async fn what_a_call_needs_while_it_is_answered_is_small() {
    let house = Plan::new().build();
    let request = Request::CallTool { tool: "t.looks".to_owned(), input: Value::Null };
    let answering = house.host.answer(Asked::plain(request, Caller::local(), "mcp"));
    // It is moved, whole, for each call.
    let bytes = size_of_val(&answering);
    assert!(bytes <= 4096, "{bytes} bytes");
}
