//! Draws a progress bar and the last lines of output on a terminal.

use std::collections::VecDeque;
use std::fmt::Write;
use std::io::{IsTerminal, stderr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressState, ProgressStyle};
use rustix::process::getpgrp;
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr};
use toolgate_contract::{OutputStreamKind, lock_mutex};
use toolgate_service::config;

use super::ProgressUpdate;
use super::lines::level_name;
use super::terminal_text::{
    IncompleteOutputLine, cut_to_width, format_clock, plain_line, repeats_line,
};

/// Maximum number of lines of program output that are shown under the progress bar.
const TAIL_LINES: usize = 5;
/// Interval between redraws of the progress bar.
const TICK: Duration = Duration::from_millis(100);
/// Frames of the animation beside the progress bar.
const SPINNER: [char; 10] = ['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏'];

/// Progress bar on the terminal, with a guard that turns off the echo of control keys.
pub(in crate::cli) struct ProgressBarDisplay {
    bar: ProgressBarHandle,
    _quiet: Option<TerminalEchoGuard>,
}

/// Handle that hides, shows and ends the progress bar.
#[derive(Clone)]
pub(in crate::cli) struct ProgressBarHandle {
    view: SharedProgressContent,
    drawn: Arc<Mutex<ProgressBarState>>,
}

/// Drawing state of the progress bar.
enum ProgressBarState {
    Visible(ProgressBar),
    /// The bar is hidden, because the terminal shows something else, such as a question.
    Hidden,
    /// The bar has ended permanently.
    Ended,
}

/// Guard that hides the progress bar until it is dropped.
pub(in crate::cli) struct HiddenProgressBar<'a>(&'a ProgressBarHandle);

/// Content of the progress bar, behind a lock. Clones share the content.
#[derive(Clone)]
pub(in crate::cli) struct SharedProgressContent(Arc<Mutex<ProgressBarContent>>);

/// Content of the progress bar: name, progress, message and last lines of output.
struct ProgressBarContent {
    name: String,
    since: Instant,
    fraction: Option<f64>,
    message: Option<String>,
    tail: VecDeque<String>,
    /// Last complete line of the program's output.
    last: String,
    stdout: IncompleteOutputLine,
    stderr: IncompleteOutputLine,
}

/// Guard that turns off the echo of control keys, because `^C` would shift the progress bar.
struct TerminalEchoGuard;

impl ProgressBarDisplay {
    /// Creates a progress bar for `name` if standard error is a terminal in the foreground.
    pub(super) fn begin(name: &str, running_for: Duration) -> Option<Self> {
        let dumb =
            config::environment().iter().any(|(name, value)| name == "TERM" && value == "dumb");
        if dumb || !is_foreground_terminal() {
            return None;
        }
        let view = SharedProgressContent::new(name, running_for);
        let quiet = TerminalEchoGuard::turn_off();
        let drawn = Arc::new(Mutex::new(ProgressBarState::Visible(view.draw()?)));
        Some(Self { bar: ProgressBarHandle { view, drawn }, _quiet: quiet })
    }

    pub(super) fn view(&self) -> SharedProgressContent {
        self.bar.view.clone()
    }

    pub(super) fn draw_bar(&self) -> ProgressBarHandle {
        self.bar.clone()
    }

    pub(super) fn end(self) {
        self.bar.set_state(ProgressBarState::Ended);
    }
}

impl ProgressBarHandle {
    /// Hides the progress bar until the returned guard is dropped.
    pub(in crate::cli) fn hide(&self) -> HiddenProgressBar<'_> {
        self.set_state(ProgressBarState::Hidden);
        HiddenProgressBar(self)
    }

    fn set_state(&self, other: ProgressBarState) {
        let mut drawn = lock_mutex(&self.drawn);
        match &*drawn {
            ProgressBarState::Visible(bar) => bar.finish_and_clear(),
            ProgressBarState::Hidden => {}
            ProgressBarState::Ended => return,
        }
        *drawn = other;
    }
}

impl Drop for HiddenProgressBar<'_> {
    fn drop(&mut self) {
        if let Some(bar) = self.0.view.draw() {
            self.0.set_state(ProgressBarState::Visible(bar));
        }
    }
}

impl SharedProgressContent {
    fn new(name: &str, running_for: Duration) -> Self {
        let now = Instant::now();
        Self(Arc::new(Mutex::new(ProgressBarContent {
            name: plain_line(name),
            since: now.checked_sub(running_for).unwrap_or(now),
            fraction: None,
            message: None,
            tail: VecDeque::new(),
            last: String::new(),
            stdout: IncompleteOutputLine::default(),
            stderr: IncompleteOutputLine::default(),
        })))
    }

    pub(super) fn take(&self, update: ProgressUpdate) {
        lock_mutex(&self.0).take(update);
    }

    /// Starts drawing the progress bar on standard error. Returns the drawn bar, or `None` if it
    /// cannot be drawn.
    fn draw(&self) -> Option<ProgressBar> {
        let head = self.clone();
        let tail = self.clone();
        let style = ProgressStyle::with_template("{head}{tail:.dim}")
            .ok()?
            .with_key("head", move |_: &ProgressState, out: &mut dyn Write| {
                let _ = out.write_str(&lock_mutex(&head.0).head(terminal_size().0));
            })
            .with_key("tail", move |_: &ProgressState, out: &mut dyn Write| {
                let (columns, rows) = terminal_size();
                let _ = out.write_str(&lock_mutex(&tail.0).tail(columns, rows));
            });
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let bar = bar.with_style(style).with_finish(ProgressFinish::AndClear);
        bar.enable_steady_tick(TICK);
        Some(bar)
    }
}

impl ProgressBarContent {
    fn take(&mut self, update: ProgressUpdate) {
        match update {
            ProgressUpdate::Restarted { attempt } => {
                (self.fraction, self.message) = (None, None);
                if attempt > 1 {
                    self.push_line(&format!("restarted: attempt {attempt}"));
                }
            }
            ProgressUpdate::Progress { fraction, message } => {
                self.fraction = fraction.or(self.fraction);
                self.message = message;
            }
            ProgressUpdate::Printed { stream, text } => self.printed(stream, &text),
            ProgressUpdate::Log { level, message } => {
                self.push_line(&format!("{}: {message}", level_name(level)));
            }
            ProgressUpdate::LeftFile { path } => self.push_line(&format!("file: {path}")),
        }
    }

    fn printed(&mut self, stream: OutputStreamKind, text: &str) {
        let unfinished = match stream {
            OutputStreamKind::Stdout => &mut self.stdout,
            OutputStreamKind::Stderr => &mut self.stderr,
        };
        // Only the last lines of long output will be visible.
        let mut text = text;
        if let Some((end, _)) = text.rmatch_indices('\n').nth(TAIL_LINES) {
            unfinished.clear();
            text = &text[end + 1..];
        }
        let tail = &mut self.tail;
        let last = &mut self.last;
        unfinished.take(text, |line| {
            line.clone_into(last);
            push(tail, line);
        });
    }

    fn push_line(&mut self, line: &str) {
        push(&mut self.tail, line);
    }

    /// Returns the first line of the progress display: name, progress, elapsed time and message.
    fn head(&self, columns: usize) -> String {
        let elapsed = self.since.elapsed();
        let beat = elapsed.as_millis() / TICK.as_millis();
        let spinner = usize::try_from(beat).map_or(' ', |beat| SPINNER[beat % SPINNER.len()]);
        let mut head = format!("{spinner} {}  ", cut_to_width(&self.name, (columns / 3).max(8)));
        if let Some(fraction) = self.fraction {
            let _ = write!(head, "{} {:>3.0} %  ", bar(fraction, columns / 5), fraction * 100.0);
        }
        head.push_str(&format_clock(elapsed));
        let below = [self.last.as_str(), self.stdout.text(), self.stderr.text()];
        let message = self.message.as_deref().unwrap_or_default();
        if !below.iter().any(|line| repeats_line(message, line)) {
            let _ = write!(head, "  {}", plain_line(message));
        }
        let head = head.trim_end();
        cut_to_width(head, columns)
    }

    /// Returns the last lines of program output, each after a line break, for the lines under the
    /// progress bar.
    fn tail(&self, columns: usize, rows: usize) -> String {
        let lines: Vec<_> = self.shown().collect();
        let room = TAIL_LINES.min(rows.saturating_sub(2));
        let shown = &lines[lines.len().saturating_sub(room)..];
        shown
            .iter()
            .map(|line| format!("\n{}", cut_to_width(&format!("  {line}"), columns)))
            .collect()
    }

    fn shown(&self) -> impl Iterator<Item = String> {
        let unfinished =
            [&self.stdout, &self.stderr].map(|unfinished| plain_line(unfinished.text()));
        let unfinished = unfinished.into_iter().filter(|line| !line.trim().is_empty());
        self.tail.iter().cloned().chain(unfinished)
    }
}

fn push(tail: &mut VecDeque<String>, line: &str) {
    let line = plain_line(line);
    if line.trim().is_empty() {
        return;
    }
    if tail.len() == TAIL_LINES {
        tail.pop_front();
    }
    tail.push_back(line);
}

/// Draws a bar of about `columns` columns: at least 8, and at most 24.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "the value is between 0 and the width of a screen"
)]
fn bar(fraction: f64, columns: usize) -> String {
    let columns = columns.clamp(8, 24);
    let done = (fraction.clamp(0.0, 1.0) * columns as f64).round() as usize;
    format!("{}{}", "█".repeat(done), "░".repeat(columns - done))
}

/// Returns the numbers of columns and rows of the terminal.
fn terminal_size() -> (usize, usize) {
    match tcgetwinsize(stderr()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        Ok(_) | Err(_) => (80, 24),
    }
}

/// Returns true if standard error is a terminal and this process is in its foreground. The bar of a
/// background process would overwrite the screen of another program.
fn is_foreground_terminal() -> bool {
    stderr().is_terminal() && tcgetpgrp(stderr()).is_ok_and(|group| group == getpgrp())
}

impl TerminalEchoGuard {
    fn turn_off() -> Option<Self> {
        let mut modes = tcgetattr(stderr()).ok()?;
        if !modes.local_modes.contains(LocalModes::ECHOCTL) {
            return None;
        }
        modes.local_modes.remove(LocalModes::ECHOCTL);
        tcsetattr(stderr(), OptionalActions::Now, &modes).ok()?;
        Some(Self)
    }
}

impl Drop for TerminalEchoGuard {
    fn drop(&mut self) {
        if let Ok(mut modes) = tcgetattr(stderr())
            && is_foreground_terminal()
        {
            modes.local_modes.insert(LocalModes::ECHOCTL);
            let _ = tcsetattr(stderr(), OptionalActions::Now, &modes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scene(updates: impl IntoIterator<Item = ProgressUpdate>) -> ProgressBarContent {
        let view = SharedProgressContent::new("say_hello", Duration::from_secs(7));
        updates.into_iter().for_each(|update| view.take(update));
        Arc::into_inner(view.0).unwrap().into_inner().unwrap()
    }

    fn printed(text: &str) -> ProgressUpdate {
        ProgressUpdate::Printed { stream: OutputStreamKind::Stdout, text: text.to_owned() }
    }

    #[test]
    fn a_bar_is_drawn_if_the_progress_is_known() {
        let at =
            |fraction| ProgressUpdate::Progress { fraction, message: Some("linking".to_owned()) };
        let head =
            |update: ProgressUpdate, columns| scene([update]).head(columns)["⠋".len()..].to_owned();
        assert_eq!(head(at(None), 80), " say_hello  0:07  linking");
        assert_eq!(head(at(Some(0.5)), 80), " say_hello  ████████░░░░░░░░  50 %  0:07  linking");
        assert_eq!(head(at(Some(0.5)), 40), " say_hello  ████░░░░  50 %  0:07  link…");
        assert_eq!(head(at(Some(1.0)), 20), " say_hel…  ███████…");
    }

    #[test]
    fn the_last_lines_are_shown_cut_and_without_control_sequences() {
        let lines: String =
            (1..=9).map(|n| format!("\u{1b}[3{n}mline {n} is long\u{1b}[0m\n")).collect();
        let scene = scene([printed(&lines), printed("and more")]);
        let tail = "\n  line 6 i…\n  line 7 i…\n  line 8 i…\n  line 9 i…\n  and more";
        assert_eq!(scene.tail(11, 24), tail);
        assert_eq!(scene.tail(80, 3), "\n  and more");
    }

    #[test]
    fn a_message_that_is_shown_below_is_not_shown_twice() {
        let message = |message: &str| ProgressUpdate::Progress {
            fraction: None,
            message: Some(message.to_owned()),
        };
        let head = scene([printed("50%\n"), message("50%")]).head(80);
        assert_eq!(&head["⠋".len()..], " say_hello  0:07");
    }
}
