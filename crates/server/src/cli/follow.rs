//! Displays the progress and output of a running call or job on standard error.
//!
//! A terminal shows a progress bar and the last lines of output, which disappear at the end. A pipe
//! gets one line per update.

mod live;
mod lines;
pub(super) mod terminal_text;

use std::time::Duration;

use toolgate_contract::{
    CallEvent, CallEventSink, JobEventKind, LogLevel, OutputStreamKind, log_text,
};

use lines::ProgressLineDisplay;
use live::ProgressBarDisplay;
pub(super) use live::ProgressBarHandle;

/// An update about a running call or job, for its display.
#[derive(Debug)]
pub(super) enum ProgressUpdate {
    /// The job has started, or has started again after an interruption. `attempt` counts the starts
    /// from 1.
    Restarted { attempt: u32 },
    /// The call or job reports progress, with a fraction from 0 to 1 if the fraction is known.
    Progress { fraction: Option<f64>, message: Option<String> },
    /// A program of the call or job has printed `text` to this stream.
    Printed { stream: OutputStreamKind, text: String },
    /// The call or job has logged `message`.
    Log { level: LogLevel, message: String },
    /// The call or job has produced the file at this path.
    LeftFile { path: String },
}

impl ProgressUpdate {
    fn from_event(event: CallEvent) -> Option<Self> {
        Some(match event {
            CallEvent::Progress { done, total, message } => Self::progress(done, total, message),
            CallEvent::ProgramOutput { stream, text } => Self::Printed { stream, text },
            CallEvent::Log { level, data, .. } => {
                Self::Log { level, message: log_text(&data).into_owned() }
            }
            CallEvent::FileProduced(file) => Self::LeftFile { path: file.path },
            // These events concern clients that return later.
            CallEvent::ReleaseConnection | CallEvent::VisitFinished { .. } => return None,
        })
    }

    /// Creates a progress update for `done` of `total` units. Without `total`, the fraction is
    /// unknown.
    pub(super) fn progress(done: f64, total: Option<f64>, message: Option<String>) -> Self {
        let total = total.filter(|total| *total > 0.0);
        let fraction = total.map(|total| done / total).filter(|fraction| fraction.is_finite());
        Self::Progress { fraction: fraction.map(|fraction| fraction.clamp(0.0, 1.0)), message }
    }

    /// Converts an event of a job to an update for the display. Returns `None` for events that the
    /// display does not show, such as the end of the job.
    pub(super) fn from_job_event(event: &JobEventKind) -> Option<Self> {
        Some(match event {
            JobEventKind::Queued | JobEventKind::Finished { .. } => return None,
            JobEventKind::Started { attempt } => Self::Restarted { attempt: *attempt },
            // A job without progress reports stays at 0.
            JobEventKind::Progress { fraction, message } => Self::Progress {
                fraction: Some(*fraction).filter(|fraction| *fraction > 0.0),
                message: message.clone(),
            },
            JobEventKind::Output { stream, text } => {
                Self::Printed { stream: *stream, text: text.clone() }
            }
            JobEventKind::Log { level, message } => {
                Self::Log { level: *level, message: message.clone() }
            }
            JobEventKind::Artefact(file) => Self::LeftFile { path: file.path.clone() },
            JobEventKind::Asks { open: 0 } => return None,
            JobEventKind::Asks { .. } => Self::Log {
                level: LogLevel::Notice,
                message: "the job has a question for the client that started it".to_owned(),
            },
        })
    }
}

/// Display of the progress and output of a running call or job.
pub(super) enum ProgressDisplay {
    /// Draws a progress bar on a terminal.
    Live(ProgressBarDisplay),
    /// Prints lines of text, for a pipe or a file.
    Lines(ProgressLineDisplay),
}

impl ProgressDisplay {
    /// Starts a display for the call or job `name`, which has been running for `running_for`.
    pub(super) fn begin(name: &str, running_for: Duration) -> Self {
        match ProgressBarDisplay::begin(name, running_for) {
            Some(live) => Self::Live(live),
            None => Self::Lines(ProgressLineDisplay::begin()),
        }
    }

    /// Returns a sink that displays the events of a call. The sink never blocks: if the display
    /// prints lines and is too slow, updates are dropped and counted.
    pub(super) fn sink(&self) -> CallEventSink {
        let sink = match self {
            Self::Live(live) => {
                let live = live.view();
                CallEventSink::new(move |event| {
                    if let Some(update) = ProgressUpdate::from_event(event) {
                        live.take(update);
                    }
                })
            }
            Self::Lines(lines) => {
                let sender = lines.sender();
                CallEventSink::new(move |event| {
                    if let Some(update) = ProgressUpdate::from_event(event) {
                        sender.try_send(update);
                    }
                })
            }
        };
        sink.with_log_level(Some(LogLevel::Info))
    }

    /// Shows an update about the running call or job. Waits if too many updates are queued.
    pub(super) async fn show(&self, update: ProgressUpdate) {
        match self {
            Self::Live(live) => live.view().take(update),
            Self::Lines(lines) => lines.send(update).await,
        }
    }

    /// Returns a handle of the progress bar, or `None` if the display prints lines.
    pub(super) fn bar(&self) -> Option<ProgressBarHandle> {
        match self {
            Self::Live(live) => Some(live.draw_bar()),
            Self::Lines(_) => None,
        }
    }

    /// Ends the display: removes the bar, or waits until all lines are written.
    pub(super) async fn end(self) {
        match self {
            Self::Live(live) => live.end(),
            Self::Lines(lines) => lines.end().await,
        }
    }
}
