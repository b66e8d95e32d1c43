//! Parts of pages that show jobs.

use maud::{Markup, html};
use toolgate_contract::{JobSnapshot, JobState, fold_name};

use super::layout::{scrolling_table, time};

/// Returns the state of a job as a colored word in HTML.
pub(crate) fn state(state: JobState) -> Markup {
    let class = match state {
        JobState::Queued | JobState::Running => "warn",
        JobState::Succeeded => "good",
        JobState::Failed | JobState::Canceled => "bad",
    };
    html! { span .state .(class) { (state.as_str()) } }
}

/// Returns an HTML table of `jobs`.
pub(crate) fn table(jobs: &[JobSnapshot]) -> Markup {
    html! {
        (scrolling_table(&html! {
            th { "Job" } th { "State" } th { "Caller" } th { "Progress" } th { "Created (UTC)" }
        }, &html! {
            @for job in jobs {
                tr {
                    td {
                        a href=(format!("/console/jobs/{}", job.id)) { (fold_name(job.tool.as_str())) }
                        @if !job.questions.is_empty() {
                            " " span .state .warn { "waits for an answer" }
                        }
                    }
                    td { (state(job.state)) }
                    td { (job.caller.name) }
                    td .text { (progress(job)) }
                    td { (time(job.created)) }
                }
            }
        }))
    }
}

/// Returns the progress of a job in HTML, with its latest message.
pub(crate) fn progress(job: &JobSnapshot) -> Markup {
    html! {
        @if job.state == JobState::Running {
            progress max="1" value=(job.progress) aria-label="Progress" {}
        }
        @if let Some(message) = &job.message { span .hint { (message) } }
    }
}
