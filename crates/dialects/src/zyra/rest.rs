//! Discovery and jobs over plain HTTP: requests by path, and answers with statuses.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use toolgate_contract::{
    Answer, Artefact, Beside, Body, CallError, Event, Job, JobId, OpenArtefact, Reply, Request,
    ToolPage, Which,
};

use super::NAME;
use super::places::{Place, single};
use super::watch;
use super::words::{Printed, output_file, parameters, spell, wording};
use crate::rpc::written;
use crate::{Accepts, Ask, Asking, Facts, Key, OnLeave, Reading, Ticket};

/// The server description in discovery.
const ABOUT: &str = "Zyra MCP server for domain-specific data visualization";

/// Reads a request for `place`.
pub(crate) fn read(facts: &Facts, place: Place, method: &str, query: &str) -> Reading {
    match (place, method) {
        (Place::Health, "GET" | "HEAD") => Reading::Reply(json_reply(&status(facts))),
        (Place::Calls, "GET" | "HEAD" | "OPTIONS") => {
            ask(Request::ListTools { after: None }, View::Discovery)
        }
        (Place::Calls, _) => Reading::Reply(only("GET, HEAD, OPTIONS, POST")),
        (Place::Job(id), "GET" | "HEAD") => {
            of_job(id, |id| Ok(ask(Request::GetJob { id }, View::Job)))
        }
        (Place::Job(id), "DELETE") => {
            of_job(id, |id| Ok(ask(Request::CancelJob { id }, View::Canceled)))
        }
        (Place::Job(_), _) => Reading::Reply(only("GET, HEAD, DELETE")),
        (Place::Manifest(id), "GET" | "HEAD") => {
            of_job(id, |id| Ok(ask(Request::GetJob { id }, View::Manifest)))
        }
        (Place::Download(id), "GET" | "HEAD") => of_job(id, |id| {
            let which = which(query)?;
            Ok(ask(Request::OpenArtefact { id, which }, View::File))
        }),
        (Place::Progress(id), "GET") => watch::as_events(id, query),
        // HEAD has no body, so no events are watched.
        (Place::Progress(_), "HEAD") => {
            Reading::Reply(Reply::empty(200).with_header("content-type", "text/event-stream"))
        }
        (Place::Talk | Place::Watch(_), "GET" | "HEAD") => {
            let reply = detail(426, "there is a WebSocket here, and nothing else");
            Reading::Reply(reply.with_header("upgrade", "websocket"))
        }
        (Place::Manifest(_) | Place::Download(_) | Place::Progress(_) | Place::Health, _) => {
            Reading::Reply(only("GET, HEAD"))
        }
        (Place::Talk | Place::Watch(_), _) => Reading::Reply(only("GET")),
    }
}

/// Returns the status report with the server's version.
pub(crate) fn status(facts: &Facts) -> Value {
    json!({ "status": "ok", "version": facts.version })
}

/// Reads a request about the job `id`. A malformed id is answered like an unknown job.
fn of_job(id: String, read: impl FnOnce(String) -> Result<Reading, String>) -> Reading {
    let reading = match id.parse::<JobId>() {
        Ok(_) => read(id),
        Err(_) => return Reading::Reply(detail(404, no_job(&id))),
    };
    reading.unwrap_or_else(|why| Reading::Reply(detail(400, why)))
}

pub(crate) fn no_job(id: &str) -> String {
    format!("no job is named `{id}`")
}

/// Parses the selection of a job's files from `query`.
fn which(query: &str) -> Result<Which, String> {
    let zip = match single(query, "zip")?.as_deref() {
        None | Some("" | "0" | "false") => false,
        Some("1" | "true") => true,
        Some(other) => return Err(format!("`zip` must be 1 or 0, not `{other}`")),
    };
    match (single(query, "file")?, zip) {
        (Some(_), true) => Err("`file` asks for one file, `zip` for all".to_owned()),
        (Some(name), false) => {
            let plain = !matches!(name.as_str(), "" | "." | "..")
                && !name.contains(['/', '\\'])
                && !name.contains(char::is_control);
            plain
                .then(|| Which::Named(name.clone()))
                .ok_or_else(|| format!("`{name}` is not a file's name; the manifest has the names"))
        }
        (None, true) => Ok(Which::All),
        (None, false) => Ok(Which::Main),
    }
}

fn ask(request: Request, view: View) -> Reading {
    let on_leave = match view {
        View::Canceled => OnLeave::Continues,
        View::Discovery | View::Job | View::Manifest | View::File => OnLeave::Cancels,
    };
    Reading::Ask(Ask {
        // The request is alone in its conversation, so any key is unique.
        key: Key("rest".to_owned()),
        request,
        ticket: Arc::new(RestTicket { view }),
        on_leave,
        events: Accepts::Message,
        asking: Asking::Nobody,
        beside: Beside::default(),
        within: None,
        via: None,
    })
}

/// The encoder for one request, with the selected view of the answer.
struct RestTicket {
    view: View,
}

#[derive(Debug, Clone, Copy)]
enum View {
    Discovery,
    Job,
    Canceled,
    Manifest,
    File,
}

impl Ticket for RestTicket {
    fn reply(&self, outcome: Result<Answer, CallError>) -> Option<Reply> {
        Some(match (self.view, outcome) {
            (View::Discovery, Ok(Answer::Tools(page))) => json_reply(&discovery(&page)),
            (View::Job, Ok(Answer::Job(job))) => json_reply(&record(&job)),
            (View::Canceled, Ok(Answer::Job(job))) => {
                json_reply(&json!({ "status": job.state, "job_id": job.id.to_string() }))
            }
            (View::Manifest, Ok(Answer::Job(job))) => json_reply(&manifest(&job)),
            (View::File, Ok(Answer::Artefact(artefact))) => file(artefact),
            (_, Err(error)) => refusal(&error),
            (_, Ok(_)) => detail(500, "that was not asked for"),
        })
    }

    fn event(&self, _event: &Event) -> Option<Bytes> {
        None
    }

    fn listens(&self) -> bool {
        false
    }
}

fn discovery(page: &ToolPage) -> Value {
    let mut commands = Vec::with_capacity(page.tools.len());
    for tool in &page.tools {
        let spec = tool.spec();
        commands.push(json!({
            "name": spell(spec.id.as_str()),
            "description": spec.about,
            "parameters": parameters(spec),
        }));
    }
    json!({
        "mcp_version": "0.1",
        "name": NAME,
        "description": ABOUT,
        "capabilities": { "commands": commands },
    })
}

fn record(job: &Job) -> Value {
    let printed = Printed::of_job(job);
    json!({
        "job_id": job.id.to_string(),
        "status": job.state,
        "stdout": printed.stdout,
        "stderr": printed.stderr,
        "exit_code": printed.exit_code,
        "output_file": output_file(job),
        // Zyra lists the resolved placeholders of arguments here. toolgate has no placeholders.
        "resolved_input_paths": [],
    })
}

fn manifest(job: &Job) -> Value {
    let listed = |artefact: &Artefact| {
        let Artefact { name, path, bytes, modified, media_type } = artefact;
        json!({
            "name": name,
            "path": path,
            "size": bytes,
            "mtime": modified.as_second(),
            "media_type": media_type,
        })
    };
    let artifacts: Vec<Value> = job.artefacts.iter().map(listed).collect();
    json!({ "job_id": job.id.to_string(), "artifacts": artifacts })
}

fn file(OpenArtefact { name, file }: OpenArtefact) -> Reply {
    Reply { status: 200, headers: Vec::new(), body: Body::File(file) }
        .with_header("content-disposition", disposition(&name))
        // This stops browsers from running a job's file as a page of this server.
        .with_header("x-content-type-options", "nosniff")
}

/// Returns the `Content-Disposition` of a file (RFC 6266): an ASCII name, and the full name in
/// UTF-8.
fn disposition(name: &str) -> String {
    let plain =
        |c: char| if matches!(c, ' '..='~') && !matches!(c, '"' | '\\' | '%') { c } else { '_' };
    let ascii: String = name.chars().map(plain).collect();
    let mut header = format!("attachment; filename=\"{ascii}\"");
    if ascii != name {
        header.push_str("; filename*=UTF-8''");
        header.extend(utf8_percent_encode(name, NON_ALPHANUMERIC));
    }
    header
}

fn refusal(error: &CallError) -> Reply {
    let message = wording(error);
    match error {
        CallError::InvalidInput { .. } => detail(400, message),
        CallError::NotAllowed { .. } | CallError::Scope { .. } => detail(403, message),
        CallError::UnknownTool { .. } | CallError::NotFound { .. } => detail(404, message),
        CallError::Conflict { .. } => detail(409, message),
        CallError::TooLarge { .. } => detail(413, message),
        CallError::Limited { retry_after, .. } => {
            detail(429, message).with_header("retry-after", seconds(*retry_after))
        }
        CallError::NeedsJob { .. }
        | CallError::NoJob { .. }
        | CallError::Mismatch { .. }
        | CallError::Refused { .. } => detail(400, message),
        CallError::Failed { .. }
        | CallError::InvalidOutput { .. }
        | CallError::Interrupted
        | CallError::Asks { .. }
        | CallError::CannotAsk { .. } => detail(500, message),
        CallError::Unavailable { .. } | CallError::Canceled => detail(503, message),
        CallError::TimedOut { .. } => detail(504, message),
    }
}

/// Returns a wait for `Retry-After` in whole seconds, rounded up, at least 1.
pub(crate) fn seconds(wait: Duration) -> String {
    wait.as_millis().div_ceil(1000).max(1).to_string()
}

/// Creates an error reply with its reason.
pub(crate) fn detail(status: u16, why: impl Into<String>) -> Reply {
    json_reply(&json!({ "detail": why.into() })).with_status(status)
}

/// Creates the refusal of all HTTP methods but `allow`.
pub(crate) fn only(allow: &'static str) -> Reply {
    detail(405, format!("only {allow} here")).with_header("allow", allow)
}

/// Creates the reply for an unknown path.
pub(crate) fn nothing_here(path: &str) -> Reply {
    detail(404, format!("there is nothing at `{path}`"))
}

fn json_reply(value: &Value) -> Reply {
    Reply::json(written(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_ends_the_header_it_stands_in() {
        assert_eq!(disposition("heat map.png"), r#"attachment; filename="heat map.png""#);
        assert_eq!(
            disposition("größe\".png\r\nx: y"),
            "attachment; filename=\"gr__e_.png__x: y\"; \
             filename*=UTF-8''gr%C3%B6%C3%9Fe%22%2Epng%0D%0Ax%3A%20y"
        );
    }

    #[test]
    fn a_wait_is_rounded_up() {
        for (ms, said) in [(0, "1"), (1, "1"), (1000, "1"), (1001, "2")] {
            assert_eq!(seconds(Duration::from_millis(ms)), said);
        }
    }
}
