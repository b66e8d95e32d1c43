//! Overview page of the console: open confirmations, failures and the state of the server.

use std::cmp::Reverse;
use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};
use maud::{Markup, html};
use serde_json::json;
use toolgate_contract::printable::escape_lines;
use toolgate_contract::{ClientQuestion, JobSnapshot, JobState, Reply};
use toolgate_host::{
    AuditIndex, AuditRecordFilter, CallGrouping, CallStatistics, ParsedAuditRecord,
};
use toolgate_upstream::UpstreamState;
use toolgate_upstream::pins::PinMismatchReaction;

use super::{calls, encode, notice, upstreams};
use crate::console::console_sessions::ConsoleSession;
use crate::console::layout::{self, ConsolePage, ago, csrf_field, moment, scrolling_table};
use crate::console::upstream_calls::{self, UpstreamCallReport};
use crate::console::{UpstreamWithPinChanges, WebConsole, job_views};
use crate::sessions::waiting_questions::WaitingQuestion;
use crate::telemetry::call_lines::duration_text;

/// Length of the period whose calls the console's overview summarizes.
const WINDOW: SignedDuration = SignedDuration::from_mins(5);
/// Maximum number of recent calls from which the console computes typical durations.
const SAMPLE_MAX: usize = 1000;
/// Number of hours in the chart of calls on the console's overview.
const HOURS: u32 = 24;
/// Number of hours between two labels below the chart of calls on the console's overview.
const LABEL_HOURS: usize = 6;
/// Maximum number of lines about one changed upstream on the console's overview.
const SUMMARY_LINES_MAX: usize = 12;
/// Maximum number of upstreams on the console's overview.
const UPSTREAMS_MAX: usize = 10;
/// Maximum number of questions to connected clients on the console's overview.
const QUESTIONS_MAX: usize = 10;
/// Outcome in the audit log of a call that ended with a question to its client.
pub(super) const ASKS: &str = "asks";
/// Maximum number of tools in the list of tools with the most failures on the console's overview.
const FAILING_MAX: usize = 5;
/// Number of a tool's newest failed calls that are searched for the most frequent error.
const ERRORS_MAX: usize = 100;
/// Number of newest jobs that the console's overview searches for questions.
const JOBS_MAX: usize = 100;

/// Statistics of the recent calls for the console's overview.
struct RecentCallStatistics {
    sample: Vec<ParsedAuditRecord>,
    hours: Vec<CallStatistics>,
    failing: Vec<ToolFailures>,
}

/// Statistics of the failed calls of one tool.
struct ToolFailures {
    tool: String,
    /// Number of failed calls of the tool.
    calls: u64,
    /// Texts about the outcomes of the failed calls, each with the number of calls.
    outcomes: Vec<String>,
    error: Option<FrequentToolError>,
}

/// The most frequent error of a tool. If several are equally frequent, the newest of them.
struct FrequentToolError {
    text: String,
    /// Number of different errors among the examined calls.
    different: usize,
    /// Number of examined calls with this error.
    calls: usize,
    /// Sequence number of the audit record of the newest call with this error.
    seq: Option<u64>,
}

pub(super) async fn page(
    console: &WebConsole,
    session: &ConsoleSession,
) -> Option<ConsolePage<'static>> {
    let jobs = newest_jobs(console).await;
    let pins = changed_pins(console, session).await;
    let now = Timestamp::now();
    let recent =
        console.audit.run("overview".to_owned(), move |index| recent_calls(index, now)).await;
    let report = upstream_calls::report(console).await;
    let content = html! {
        section data-part="questions" { (questions(console, session)) }
        section data-part="pins" { (pins) }
        section data-part="waiting" { (waiting(&jobs, &report, now)) }
        section data-part="figures" {
            h2 { "Last five minutes" }
            @match &recent {
                Ok(recent) => (figures(&recent.sample)),
                Err(why) => (notice(why)),
            }
            (calls::incomplete_notice(console))
            (load(console, &jobs, &report))
        }
        @if let Ok(recent) = &recent {
            section data-part="failing" {
                h2 { "Failed most in the last hour" }
                (failing(&recent.failing))
                p .hint { "The calls on this page come from all servers of your user on this \
                     machine." }
            }
        }
        @if !report.upstreams.is_empty() {
            section data-part="upstreams" {
                h2 { "Upstreams" }
                (upstreams::short_table(&report, UPSTREAMS_MAX))
            }
        }
        @if let Ok(recent) = &recent {
            section data-part="hours" {
                h2 { "Calls in the last 24 hours" }
                (chart(&recent.hours, now))
            }
            section data-part="newest" {
                h2 { "Newest calls" }
                (calls::table(console, recent.sample.iter().take(10), None))
                p { a href="/console/calls" { "All calls" } }
            }
        }
    };
    Some(ConsolePage { title: "Overview".to_owned(), section: "/", live: "calls jobs", content })
}

fn recent_calls(
    index: &AuditIndex,
    now: Timestamp,
) -> Result<RecentCallStatistics, Box<dyn std::error::Error + Send + Sync>> {
    let since = |ago: SignedDuration| AuditRecordFilter {
        since: Some(now - ago),
        ..AuditRecordFilter::default()
    };
    let failed = AuditRecordFilter { failed: true, ..since(SignedDuration::from_hours(1)) };
    Ok(RecentCallStatistics {
        sample: index.records(&since(WINDOW), None, SAMPLE_MAX)?.records,
        hours: index.caller_totals(
            &[CallGrouping::Hour],
            now - SignedDuration::from_hours(i64::from(HOURS) - 1),
        )?,
        failing: failing_tools(index, &failed)?,
    })
}

/// Returns the tools with the most failed calls among the calls that the filter `failed` selects.
/// Fails if the index cannot be read.
fn failing_tools(
    index: &AuditIndex,
    failed: &AuditRecordFilter,
) -> Result<Vec<ToolFailures>, Box<dyn std::error::Error + Send + Sync>> {
    let mut tools: Vec<ToolFailures> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for one in index.statistics(&[CallGrouping::Tool, CallGrouping::Outcome], failed)? {
        let [tool, outcome] = one.group.as_slice() else { continue };
        // The client repeats such a call with the answers.
        if outcome == ASKS {
            continue;
        }
        let place = *places.entry(tool.clone()).or_insert_with(|| {
            let (calls, outcomes, error) = (0, Vec::new(), None);
            tools.push(ToolFailures { tool: tool.clone(), calls, outcomes, error });
            tools.len() - 1
        });
        tools[place].calls += one.calls;
        tools[place].outcomes.push(format!("{outcome} {}", one.calls));
    }
    tools.sort_by_key(|one| Reverse(one.calls));
    tools.truncate(FAILING_MAX);
    for one in &mut tools {
        let own = AuditRecordFilter { tool: Some(one.tool.clone()), ..failed.clone() };
        one.error = most_frequent_error(&index.records(&own, None, ERRORS_MAX)?.records);
    }
    Ok(tools)
}

/// Returns the most frequent error of the failed calls in `records`, or `None` if there is none.
/// The records must be sorted from the newest to the oldest.
fn most_frequent_error(records: &[ParsedAuditRecord]) -> Option<FrequentToolError> {
    let mut errors: Vec<FrequentToolError> = Vec::new();
    for record in records.iter().filter(|record| record.outcome != ASKS) {
        let text = record.error.as_ref().or(record.cause.as_ref()).unwrap_or(&record.outcome);
        match errors.iter_mut().find(|error| error.text == *text) {
            Some(same) => same.calls += 1,
            None => {
                errors.push(FrequentToolError {
                    text: text.clone(),
                    different: 1,
                    calls: 1,
                    seq: record.seq,
                });
            }
        }
    }
    let different = errors.len();
    errors.sort_by_key(|error| Reverse(error.calls));
    errors.into_iter().next().map(|error| FrequentToolError { different, ..error })
}

async fn newest_jobs(console: &WebConsole) -> Vec<JobSnapshot> {
    let Ok(jobs) = console.sources.host.jobs() else { return Vec::new() };
    if !jobs.has_jobs() {
        return Vec::new();
    }
    jobs.list(None, None, JOBS_MAX).await.map(|page| page.jobs).unwrap_or_default()
}

/// Returns the open questions to connected clients in HTML, with forms that answer these questions.
fn questions(console: &WebConsole, session: &ConsoleSession) -> Markup {
    let (oldest, count) = console.questions.oldest(QUESTIONS_MAX);
    html! {
        @if count > 0 {
            h2 { "Calls that wait for a person" }
            @for waiting in &oldest { (question(session, waiting)) }
            @if count > oldest.len() { p { "And " (count - oldest.len()) " newer questions." } }
        }
    }
}

/// Returns a JSON reply for `toolgate console`: the questions that a person may answer, and the
/// CSRF token that forms repeat.
pub(super) fn questions_json(console: &WebConsole, session: &ConsoleSession) -> Reply {
    let (all, _) = console.questions.oldest(usize::MAX);
    let answerable = all.iter().filter(|waiting| session.may_answer(waiting));
    let waiting: Vec<_> = answerable
        .map(|waiting| {
            let WaitingQuestion { number, call, question, since } = waiting;
            json!({
                "number": number,
                "caller": &*call.caller,
                "tool": call.subject,
                "since": since,
                "question": message(question),
            })
        })
        .collect();
    let body = json!({ "csrf": session.csrf, "waiting": waiting });
    layout::json(&body)
}

/// Returns the text that a person reads about `question`.
fn message(question: &ClientQuestion) -> &str {
    match question {
        ClientQuestion::Form { message, .. } | ClientQuestion::Visit { message, .. } => message,
        ClientQuestion::Sample(_) => "The call asks the model of its client.",
        ClientQuestion::Roots => "The call asks its client for folders.",
    }
}

fn question(session: &ConsoleSession, waiting: &WaitingQuestion) -> Markup {
    let WaitingQuestion { number, call, question, since } = waiting;
    let is_consent = question.is_for_consent();
    html! {
        p { strong { (call.caller) } " calls " strong { (call.subject) } " since " (moment(*since)) }
        pre tabindex="0" role="group" aria-label=(format!("Question from {}", call.subject)) {
            // The text may come from an upstream.
            (escape_lines(message(question)))
        }
        @if session.may_answer(waiting) {
            form .inline method="post" action=(format!("/console/questions/{number}/answer")) {
                (csrf_field(session))
                button name="choice" value="allow" { "Allow" } " "
                button name="choice" value="refuse" { "Refuse" }
            }
        } @else if !is_consent {
            p .hint { "Only the client can answer: the call wants more than a yes or no." }
        } @else if session.has_made(call) {
            p .hint { "You signed in with the key of the call, which cannot confirm its own calls." }
        } @else {
            p .hint { "You may only look: to answer, sign in with the role " code { "admin" } "." }
        }
    }
}

/// Returns the jobs and upstreams in HTML that need the attention of a person, such as jobs with a
/// question.
fn waiting(jobs: &[JobSnapshot], report: &UpstreamCallReport, now: Timestamp) -> Markup {
    let asking: Vec<JobSnapshot> =
        jobs.iter().filter(|job| !job.questions.is_empty()).cloned().collect();
    let down: Vec<_> = report.upstreams.iter().filter(|one| one.is_down()).collect();
    html! {
        @if !asking.is_empty() {
            h2 { "Waits for your answer" }
            (job_views::table(&asking))
        }
        @if !down.is_empty() {
            div .alert {
                h2 { span aria-hidden="true" { "⚠ " } "Unavailable upstreams" }
                ul {
                    @for one in down.iter().take(UPSTREAMS_MAX) {
                        li {
                            a href=(format!("/console/upstreams/{}", encode(&one.name))) {
                                (one.name)
                            }
                            @if let Some(since) = one.health.since {
                                " since " (moment(since))
                                (format!(" ({}; first failed attempt to reach it)", ago(since, now)))
                            }
                            ": " (one.health.last_error.as_deref().unwrap_or_default())
                        }
                    }
                    @if down.len() > UPSTREAMS_MAX {
                        li { "and " (down.len() - UPSTREAMS_MAX) " others" }
                    }
                }
            }
        }
    }
}

/// Returns the upstreams whose tools differ from their pins in HTML, each with a form that approves
/// the tools.
async fn changed_pins(console: &WebConsole, session: &ConsoleSession) -> Markup {
    if (console.sources.settings)().pins.on_change == PinMismatchReaction::Allow {
        return Markup::default();
    }
    let changed = console.pin_changes.current().await;
    html! {
        @match &*changed {
            Err(why) => (notice(why)),
            Ok(changed) if changed.is_empty() => {}
            Ok(changed) => {
                h2 { "Changed tools wait for your approval" }
                @for one in changed {
                    (changed_upstream(one, session))
                }
            }
        }
    }
}

fn changed_upstream(changed: &UpstreamWithPinChanges, session: &ConsoleSession) -> Markup {
    let page = format!("/console/upstreams/{}", encode(&changed.name));
    let more = changed.summary.lines().count().saturating_sub(SUMMARY_LINES_MAX);
    html! {
        pre tabindex="0" aria-label=(format!("Changes of {}", changed.name)) role="group" {
            @for line in changed.summary.lines().take(SUMMARY_LINES_MAX) { (line) "\n" }
            @if more > 0 { "and " (more) " more" }
        }
        form .inline method="post" action=(format!("{page}/approve")) {
            a href=(page) { "Read the changes" }
            @if session.may_act() {
                (csrf_field(session))
                input type="hidden" name="changes" value=(changed.digest);
                button { (format!("Approve the current tools of {}", changed.name)) }
            }
        }
    }
}

fn figures(sample: &[ParsedAuditRecord]) -> Markup {
    let failed = sample.iter().filter(|record| !record.is_ok()).count();
    let mut durations: Vec<u64> = sample.iter().map(|record| record.duration_us).collect();
    durations.sort_unstable();
    let percentile = |percent: usize| {
        let at = (durations.len() * percent / 100).min(durations.len().saturating_sub(1));
        durations.get(at).map_or_else(|| "–".to_owned(), |us| duration_text(*us))
    };
    let more = if sample.len() == SAMPLE_MAX { "+" } else { "" };
    html! {
        dl .figures {
            div { dt { "Calls" } dd { (sample.len()) (more) } }
            div { dt { "Failed" } dd .bad[failed > 0] { (failed) } }
            div { dt { "Median duration" } dd { (percentile(50)) } }
            div { dt { "99th percentile" } dd { (percentile(99)) } }
        }
    }
}

fn load(console: &WebConsole, jobs: &[JobSnapshot], report: &UpstreamCallReport) -> Markup {
    let states = report.upstreams.iter().map(|one| one.state);
    let connected = states.filter(|state| *state == UpstreamState::Connected).count();
    let running = jobs.iter().filter(|job| job.state == JobState::Running).count();
    let gauges = console.sources.host.gauges();
    html! {
        h2 { "Now" }
        dl .figures {
            @for pool in gauges.pools {
                div {
                    dt { "Running " (pool.name) }
                    dd { (pool.running) " of " (pool.running_max) }
                }
            }
            div { dt { "Running jobs" } dd { (running) } }
            @if !report.upstreams.is_empty() {
                div {
                    dt { "Connected upstreams" }
                    dd { (connected) " of " (report.upstreams.len()) }
                }
            }
            @if let Some(records) = &gauges.records {
                div {
                    dt { "Audit log" }
                    dd .bad[records.failing] {
                        @if records.failing { "cannot be written" } @else { "records each call" }
                    }
                }
            }
        }
    }
}

/// Returns a bar chart of calls in HTML, with one bar per hour. Failed calls have another color.
fn chart(hours: &[CallStatistics], now: Timestamp) -> Markup {
    let most = hours.iter().map(|hour| hour.calls).max().unwrap_or(0);
    let scale = most.max(1);
    let first_hour = now.as_second().div_euclid(3600) - i64::from(HOURS) + 1;
    let hour_start = |at: i64| Timestamp::from_second((first_hour + at) * 3600).ok();
    let bars = (0..i64::from(HOURS)).filter_map(|at| {
        let name = hour_start(at)?.strftime("%Y-%m-%dT%H:00Z").to_string();
        Some((at * 10, hours.iter().find(|one| one.group.first() == Some(&name))?))
    });
    let total: u64 = hours.iter().map(|hour| hour.calls).sum();
    let failed: u64 = hours.iter().map(|hour| hour.failed).sum();
    html! {
        figure {
            svg .chart viewBox="0 0 240 60" preserveAspectRatio="none" role="img"
                aria-label=(format!("{total} calls, of which {failed} failed")) {
                @for (x, hour) in bars {
                    @let height = (hour.calls * 60).div_ceil(scale);
                    @let failed_height = (hour.failed * 60).div_ceil(scale);
                    rect .calls x=(x) y=(60 - height) width="8" height=(height) {}
                    rect .failed x=(x) y=(60 - failed_height) width="8" height=(failed_height) {}
                }
            }
            div .hours {
                @for at in (0..i64::from(HOURS)).step_by(LABEL_HOURS) {
                    span { @if let Some(start) = hour_start(at) { (start.strftime("%H:%M")) } }
                }
            }
            figcaption .hint {
                (format!(
                    "Calls in each hour (UTC), at most {most}. In total, {failed} of {total} calls \
                     failed (red). The last bar is this hour."
                ))
            }
        }
    }
}

fn failing(failing: &[ToolFailures]) -> Markup {
    html! {
        @if failing.is_empty() {
            p { "No call failed." }
        } @else {
            (scrolling_table(&html! {
                th { "Tool" } th .number { "Failed calls" } th { "Outcomes" }
                th { "Most frequent error, or an example" }
            }, &html! {
                @for one in failing {
                    tr {
                        td {
                            a href=(format!(
                                "/console/calls?failed=1&hours=1&tool={}",
                                encode(&one.tool)
                            )) {
                                (one.tool)
                            }
                        }
                        td .number { (one.calls) }
                        td { (one.outcomes.join(", ")) }
                        td .text { @if let Some(error) = &one.error { (frequent_error(error)) } }
                    }
                }
            }))
        }
    }
}

/// Returns the text of `error` in HTML, linked to the page about the newest call with this error.
fn frequent_error(error: &FrequentToolError) -> Markup {
    let FrequentToolError { text, different, calls, seq } = error;
    html! {
        @if *different > 1 && *calls == 1 { (format!("{different} different errors, for example ")) }
        @match seq {
            Some(seq) => a href=(format!("/console/calls/{seq}")) { (text) },
            None => (text),
        }
        @if *calls > 1 { " " span .hint { "(" (calls) " calls)" } }
    }
}
