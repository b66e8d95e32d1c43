//! Pages of the console about the jobs of all callers: state, output, files and questions.

use maud::{Markup, html};
use toolgate_contract::printable::escape_lines;
use toolgate_contract::{
    ArtefactSelection, ClientQuestion, HostAnswer, HostRequest, JobOutputText, JobSnapshot,
    OpenArtefact, Reply, ReplyBody, fold_name,
};
use toolgate_host::IncomingRequest;

use super::{encode, notice, tools};
use crate::console::console_sessions::ConsoleSession;
use crate::console::forms::{FormFields, argument_fields};
use crate::console::layout::{ConsolePage, csrf_field, field, moment};
use crate::console::{WebConsole, job_views, problem};

/// Number of jobs on a console page.
const PAGE_SIZE: usize = 50;
/// Maximum size of a job's output that the console shows, in bytes.
const OUTPUT_BYTES_MAX: usize = 64 << 10;
/// Number of bytes at the start of a job's events in which the console searches for output.
const EVENTS_BYTES_MAX: usize = 1 << 20;
/// Path of the console's list of jobs.
const SECTION: &str = "/console/jobs";

pub(super) async fn list(console: &WebConsole, query: &FormFields) -> Option<ConsolePage<'static>> {
    let after = query.get("after").and_then(|id| id.parse().ok());
    let page = match console.sources.host.jobs() {
        Ok(jobs) => jobs.list(None, after, PAGE_SIZE).await,
        Err(why) => Err(why),
    };
    let content = html! {
        p { "Jobs of all callers and all servers of this workspace or its fleet, newest first." }
        section data-part="jobs" {
            @match &page {
                Err(why) => (notice(&why.to_string())),
                Ok(page) if page.jobs.is_empty() => p { "There are no jobs." },
                Ok(page) => {
                    (job_views::table(&page.jobs))
                    @if let Some(next) = page.next {
                        p { a href=(format!("{SECTION}?after={next}")) { "Older jobs" } }
                    }
                }
            }
        }
    };
    Some(ConsolePage { title: "Jobs".to_owned(), section: SECTION, live: "calls jobs", content })
}

pub(super) async fn single(
    console: &WebConsole,
    session: &ConsoleSession,
    id: &str,
) -> Option<ConsolePage<'static>> {
    let jobs = console.sources.host.jobs().ok()?;
    let job = jobs.get(None, id).await.ok()?;
    let printed = match jobs.events(id, EVENTS_BYTES_MAX).await {
        Ok(events) => JobOutputText::from_events(&events),
        Err(_) => JobOutputText::default(),
    };
    let last_log =
        JobOutputText { stdout: end_of(&printed.stdout), stderr: end_of(&printed.stderr) };
    let content = html! {
        section data-part="state" { (facts(&job)) }
        @if session.may_act() && !job.state.is_terminal() {
            form method="post" action=(format!("{SECTION}/{id}/cancel")) {
                (csrf_field(session))
                button { "Cancel the job" }
            }
        }
        (questions(session, &job))
        section data-part="output" {
            @for (stream, text) in [("Output", &last_log.stdout), ("Error output", &last_log.stderr)] {
                @if !text.is_empty() {
                    h2 { (stream) }
                    pre tabindex="0" { (text) }
                }
            }
        }
        section data-part="result" {
            @match &job.outcome {
                None => {}
                Some(Ok(output)) => { h2 { "Result" } (tools::result(output)) }
                Some(Err(why)) => { h2 { "Error" } p .notice { (why) } }
            }
            (files(&job))
        }
    };
    let title = format!("Job: {}", fold_name(job.tool.as_str()));
    let live = if job.state.is_terminal() { "" } else { "calls jobs" };
    Some(ConsolePage { title, section: SECTION, live, content })
}

/// Returns the end of `text`, up to the number of bytes that the console shows.
fn end_of(text: &str) -> String {
    let mut start = text.len().saturating_sub(OUTPUT_BYTES_MAX);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    text[start..].to_owned()
}

fn facts(job: &JobSnapshot) -> Markup {
    html! {
        div .scroll {
            table {
                tbody {
                    tr { th scope="row" { "State" } td { (job_views::state(job.state)) } }
                    tr { th scope="row" { "Progress" } td { (job_views::progress(job)) } }
                    (field("Caller", Some(&*job.caller.name)))
                    tr { th scope="row" { "Created" } td { (moment(job.created)) } }
                    tr { th scope="row" { "Changed" } td { (moment(job.updated)) } }
                    (field("Starts", Some(job.attempts)))
                    (field("Id", Some(job.id.to_string())))
                }
            }
        }
    }
}

fn questions(session: &ConsoleSession, job: &JobSnapshot) -> Markup {
    html! {
        @for (key, question) in &job.questions {
            section {
                h2 { "The job asks" }
                @match question {
                    ClientQuestion::Form { message, schema } => {
                        p { (escape_lines(message)) }
                        @if session.may_act() {
                            (answer_form(session, job, key, &argument_fields(schema)))
                        }
                    }
                    ClientQuestion::Visit { message, url, .. } => {
                        p { (escape_lines(message)) }
                        // Not a link: the address is untrusted.
                        p { "If you trust this address, open it: " code { (url) } }
                        @if session.may_act() { (answer_form(session, job, key, &html! {})) }
                    }
                    _ => p { "Only the client of the caller can answer this question." },
                }
            }
        }
    }
}

fn answer_form(session: &ConsoleSession, job: &JobSnapshot, key: &str, fields: &Markup) -> Markup {
    html! {
        form method="post" action=(format!("{SECTION}/{}/answer", job.id)) {
            (csrf_field(session))
            input type="hidden" name="question" value=(key);
            (fields)
            button .primary name="choice" value="accept" { "Accept" } " "
            button name="choice" value="decline" formnovalidate { "Decline" }
        }
    }
}

fn files(job: &JobSnapshot) -> Markup {
    let files = job.downloads();
    html! {
        @if !files.is_empty() {
            h2 { "Files" }
            ul {
                @for file in &files {
                    li {
                        a href=(format!("{SECTION}/{}/files/{}", job.id, encode(&file.name))) download {
                            (file.name)
                        }
                        " " span .muted { (file.bytes) " bytes" }
                    }
                }
            }
        }
    }
}

/// Returns a reply with the file `name` of the job `id` as a download. The headers keep browsers
/// from showing the file as a page.
pub(super) async fn file(console: &WebConsole, id: &str, name: &str) -> Reply {
    let host = &console.sources.host;
    let job = match host.jobs() {
        Ok(jobs) => jobs.get(None, id).await,
        Err(why) => Err(why),
    };
    let Ok(job) = job else { return problem(404, "There is no such job.") };
    let which = ArtefactSelection::Named(name.to_owned());
    let request = HostRequest::OpenArtefact { id: id.to_owned(), which };
    let incoming = IncomingRequest::without_client(request, job.caller, "console");
    match host.answer(incoming).await {
        Ok(HostAnswer::Artefact(OpenArtefact { name, mut file })) => {
            "application/octet-stream".clone_into(&mut file.media_type);
            let disposition = format!("attachment; filename*=UTF-8''{}", encode(&name));
            Reply { status: 200, headers: Vec::new(), body: ReplyBody::File(file) }
                .with_header("content-disposition", disposition)
                .with_header("content-security-policy", "sandbox; default-src 'none'")
                .with_header("x-content-type-options", "nosniff")
                .with_header("cache-control", "no-store")
        }
        Ok(_) | Err(_) => problem(404, "There is no such file."),
    }
}
