//! Shows the progress and output of running work on standard error.
//!
//! A terminal shows a progress bar and the last lines of output, which disappear at the end. A pipe
//! gets one line per update.

mod live;
mod lines;
pub(super) mod words;

use std::time::Duration;

use toolgate_contract::{Event, EventSink, Happened, Level, Stream, line_of};

use lines::Lines;
pub(super) use live::Bar;
use live::Live;

/// An update from running work.
#[derive(Debug)]
pub(super) enum Said {
    /// The work starts again, in this attempt.
    Begun { attempt: u32 },
    /// Progress, with a fraction from 0 to 1 if it is known.
    Progress { fraction: Option<f64>, message: Option<String> },
    /// A piece of a program's output.
    Printed { stream: Stream, text: String },
    /// A log line.
    Log { level: Level, message: String },
    /// A file that the work left.
    Left { path: String },
}

impl Said {
    fn of(event: Event) -> Option<Self> {
        Some(match event {
            Event::Progress { done, total, message } => Self::progress(done, total, message),
            Event::Chunk { stream, text } => Self::Printed { stream, text },
            Event::Log { level, data, .. } => {
                Self::Log { level, message: line_of(&data).into_owned() }
            }
            Event::Left(file) => Self::Left { path: file.path },
            // These events concern clients that return later.
            Event::LetGo | Event::Visited { .. } => return None,
        })
    }

    /// Creates a progress update for `done` of `total`.
    pub(super) fn progress(done: f64, total: Option<f64>, message: Option<String>) -> Self {
        let total = total.filter(|total| *total > 0.0);
        let fraction = total.map(|total| done / total).filter(|fraction| fraction.is_finite());
        Self::Progress { fraction: fraction.map(|fraction| fraction.clamp(0.0, 1.0)), message }
    }

    /// Converts an event of a job, except its start and end.
    pub(super) fn of_job(what: &Happened) -> Option<Self> {
        Some(match what {
            Happened::Queued | Happened::Finished { .. } => return None,
            Happened::Started { attempt } => Self::Begun { attempt: *attempt },
            // A job without progress reports stays at 0.
            Happened::Progress { fraction, message } => Self::Progress {
                fraction: Some(*fraction).filter(|fraction| *fraction > 0.0),
                message: message.clone(),
            },
            Happened::Output { stream, text } => {
                Self::Printed { stream: *stream, text: text.clone() }
            }
            Happened::Log { level, message } => {
                Self::Log { level: *level, message: message.clone() }
            }
            Happened::Artefact(left) => Self::Left { path: left.path.clone() },
            Happened::Asks { open: 0 } => return None,
            Happened::Asks { .. } => Self::Log {
                level: Level::Notice,
                message: "it asks something of the client that started it".to_owned(),
            },
        })
    }
}

/// Display of one piece of work.
pub(super) enum Follow {
    /// Progress bar for a terminal.
    Live(Live),
    /// Lines for a pipe.
    Lines(Lines),
}

impl Follow {
    /// Starts a display for `name`, which has been running for `running_for`.
    pub(super) fn begin(name: &str, running_for: Duration) -> Self {
        match Live::begin(name, running_for) {
            Some(live) => Self::Live(live),
            None => Self::Lines(Lines::begin()),
        }
    }

    /// Returns a sink for the events of a call. It never blocks: updates that a slow reader cannot
    /// take are dropped and counted.
    pub(super) fn sink(&self) -> EventSink {
        let sink = match self {
            Self::Live(live) => {
                let live = live.view();
                EventSink::new(move |event| {
                    if let Some(said) = Said::of(event) {
                        live.take(said);
                    }
                })
            }
            Self::Lines(lines) => {
                let mouth = lines.mouth();
                EventSink::new(move |event| {
                    if let Some(said) = Said::of(event) {
                        mouth.try_say(said);
                    }
                })
            }
        };
        sink.for_lines(Some(Level::Info))
    }

    /// Shows an update, waiting for room if needed.
    pub(super) async fn say(&self, said: Said) {
        match self {
            Self::Live(live) => live.view().take(said),
            Self::Lines(lines) => lines.say(said).await,
        }
    }

    /// Returns the progress bar, if there is one.
    pub(super) fn bar(&self) -> Option<Bar> {
        match self {
            Self::Live(live) => Some(live.bar()),
            Self::Lines(_) => None,
        }
    }

    /// Removes the bar, or waits until all lines are written.
    pub(super) async fn end(self) {
        match self {
            Self::Live(live) => live.end(),
            Self::Lines(lines) => lines.end().await,
        }
    }
}
