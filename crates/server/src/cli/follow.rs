//! What work says while it runs, shown on standard error to whoever waits for it.
//!
//! A person at a terminal sees a bar and the last lines that were printed, gone when the work has
//! ended; a pipe gets a line for each thing that is said.

mod live;
mod lines;
pub(super) mod words;

use std::time::Duration;

use toolgate_contract::{Event, EventSink, Happened, Level, Stream, line_of};

use lines::Lines;
pub(super) use live::Bar;
use live::Live;

/// Something that work says.
#[derive(Debug)]
pub(super) enum Said {
    /// It began again, for the `attempt`th time.
    Begun { attempt: u32 },
    /// How far it is, 0 to 1, if that is known.
    Progress { fraction: Option<f64>, message: Option<String> },
    /// A piece of what a program prints.
    Printed { stream: Stream, text: String },
    /// A line for whoever watches.
    Log { level: Level, message: String },
    /// A file it left, and where.
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
            // Nobody comes back to a terminal.
            Event::LetGo | Event::Visited { .. } => return None,
        })
    }

    /// Work of which `done` is done, `total` in all.
    pub(super) fn progress(done: f64, total: Option<f64>, message: Option<String>) -> Self {
        let total = total.filter(|total| *total > 0.0);
        let fraction = total.map(|total| done / total).filter(|fraction| fraction.is_finite());
        Self::Progress { fraction: fraction.map(|fraction| fraction.clamp(0.0, 1.0)), message }
    }

    /// What happened to a job, but for its beginning and its end.
    pub(super) fn of_job(what: &Happened) -> Option<Self> {
        Some(match what {
            Happened::Queued | Happened::Finished { .. } => return None,
            Happened::Started { attempt } => Self::Begun { attempt: *attempt },
            // A job that does not say how far it is stays at nothing.
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

/// Shows what one piece of work says.
pub(super) enum Follow {
    /// To a person.
    Live(Live),
    /// To a pipe.
    Lines(Lines),
}

impl Follow {
    /// Begins to show what `name` says, which has been running for some time.
    pub(super) fn begin(name: &str, running_for: Duration) -> Self {
        match Live::begin(name, running_for) {
            Some(live) => Self::Live(live),
            None => Self::Lines(Lines::begin()),
        }
    }

    /// Where a call's events go. It never waits: what a slow reader cannot take is left out, and
    /// that is said.
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

    /// Shows what was said, once there is room for it.
    pub(super) async fn say(&self, said: Said) {
        match self {
            Self::Live(live) => live.view().take(said),
            Self::Lines(lines) => lines.say(said).await,
        }
    }

    /// What is drawn on the terminal, where something is.
    pub(super) fn bar(&self) -> Option<Bar> {
        match self {
            Self::Live(live) => Some(live.bar()),
            Self::Lines(_) => None,
        }
    }

    /// Takes the bar away, or waits until every line is written.
    pub(super) async fn end(self) {
        match self {
            Self::Live(live) => live.end(),
            Self::Lines(lines) => lines.end().await,
        }
    }
}
