//! Draws a progress bar and the last lines of output on a terminal.

use std::collections::VecDeque;
use std::fmt::Write;
use std::io::{IsTerminal, stderr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressState, ProgressStyle};
use rustix::process::getpgrp;
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr};
use toolgate::config;
use toolgate_contract::Stream;

use super::Said;
use super::lines::word;
use super::words::{Unfinished, clock, cut, plain, says_again};

/// Most lines of output that are shown.
const TAIL: usize = 5;
/// Interval between redraws.
const TICK: Duration = Duration::from_millis(100);
const SPINNER: [char; 10] = ['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏'];

/// A progress bar on the terminal.
pub(in crate::cli) struct Live {
    bar: Bar,
    _quiet: Option<Quiet>,
}

/// Handle that hides, shows and ends the bar.
#[derive(Clone)]
pub(in crate::cli) struct Bar {
    view: View,
    drawn: Arc<Mutex<Drawn>>,
}

/// Drawing state of the bar.
enum Drawn {
    Yes(ProgressBar),
    /// Hidden, because the terminal is used for something else.
    Aside,
    /// Ended for good.
    Ended,
}

/// Guard that hides the bar until it is dropped.
pub(in crate::cli) struct Aside<'a>(&'a Bar);

/// Contents of the bar. Clones share them.
#[derive(Clone)]
pub(in crate::cli) struct View(Arc<Mutex<Scene>>);

struct Scene {
    name: String,
    since: Instant,
    fraction: Option<f64>,
    message: Option<String>,
    tail: VecDeque<String>,
    /// Last complete line of output.
    last: String,
    stdout: Unfinished,
    stderr: Unfinished,
}

/// Guard that turns off the echo of control keys, because `^C` would shift the bar.
struct Quiet;

impl Live {
    /// Creates a bar if standard error is a terminal in the foreground.
    pub(super) fn begin(name: &str, running_for: Duration) -> Option<Self> {
        let dumb =
            config::environment().iter().any(|(name, value)| name == "TERM" && value == "dumb");
        if dumb || !is_ours() {
            return None;
        }
        let view = View::new(name, running_for);
        let quiet = Quiet::begin();
        let drawn = Arc::new(Mutex::new(Drawn::Yes(view.draw()?)));
        Some(Self { bar: Bar { view, drawn }, _quiet: quiet })
    }

    pub(super) fn view(&self) -> View {
        self.bar.view.clone()
    }

    pub(super) fn bar(&self) -> Bar {
        self.bar.clone()
    }

    pub(super) fn end(self) {
        self.bar.turn(Drawn::Ended);
    }
}

impl Bar {
    /// Hides the bar until the returned guard is dropped.
    pub(in crate::cli) fn aside(&self) -> Aside<'_> {
        self.turn(Drawn::Aside);
        Aside(self)
    }

    fn turn(&self, other: Drawn) {
        let mut drawn = self.drawn.lock().unwrap_or_else(PoisonError::into_inner);
        match &*drawn {
            Drawn::Yes(bar) => bar.finish_and_clear(),
            Drawn::Aside => {}
            Drawn::Ended => return,
        }
        *drawn = other;
    }
}

impl Drop for Aside<'_> {
    fn drop(&mut self) {
        if let Some(bar) = self.0.view.draw() {
            self.0.turn(Drawn::Yes(bar));
        }
    }
}

impl View {
    fn new(name: &str, running_for: Duration) -> Self {
        let now = Instant::now();
        Self(Arc::new(Mutex::new(Scene {
            name: plain(name),
            since: now.checked_sub(running_for).unwrap_or(now),
            fraction: None,
            message: None,
            tail: VecDeque::new(),
            last: String::new(),
            stdout: Unfinished::default(),
            stderr: Unfinished::default(),
        })))
    }

    pub(super) fn take(&self, said: Said) {
        self.scene().take(said);
    }

    /// Starts drawing.
    fn draw(&self) -> Option<ProgressBar> {
        let head = self.clone();
        let tail = self.clone();
        let style = ProgressStyle::with_template("{head}{tail:.dim}")
            .ok()?
            .with_key("head", move |_: &ProgressState, out: &mut dyn Write| {
                let _ = out.write_str(&head.scene().head(columns().0));
            })
            .with_key("tail", move |_: &ProgressState, out: &mut dyn Write| {
                let (columns, rows) = columns();
                let _ = out.write_str(&tail.scene().tail(columns, rows));
            });
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let bar = bar.with_style(style).with_finish(ProgressFinish::AndClear);
        bar.enable_steady_tick(TICK);
        Some(bar)
    }

    fn scene(&self) -> MutexGuard<'_, Scene> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Scene {
    fn take(&mut self, said: Said) {
        match said {
            Said::Begun { attempt } => {
                (self.fraction, self.message) = (None, None);
                if attempt > 1 {
                    self.push(&format!("begun again: attempt {attempt}"));
                }
            }
            Said::Progress { fraction, message } => {
                self.fraction = fraction.or(self.fraction);
                self.message = message;
            }
            Said::Printed { stream, text } => self.printed(stream, &text),
            Said::Log { level, message } => self.push(&format!("{}: {message}", word(level))),
            Said::Left { path } => self.push(&format!("left: {path}")),
        }
    }

    fn printed(&mut self, stream: Stream, text: &str) {
        let unfinished = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        // Only the last lines of long output will be visible.
        let mut text = text;
        if let Some((end, _)) = text.rmatch_indices('\n').nth(TAIL) {
            unfinished.forget();
            text = &text[end + 1..];
        }
        let tail = &mut self.tail;
        let last = &mut self.last;
        unfinished.take(text, |line| {
            line.clone_into(last);
            push(tail, line);
        });
    }

    fn push(&mut self, line: &str) {
        push(&mut self.tail, line);
    }

    /// Returns the first line: name, progress, elapsed time and message.
    fn head(&self, columns: usize) -> String {
        let elapsed = self.since.elapsed();
        let beat = elapsed.as_millis() / TICK.as_millis();
        let spinner = usize::try_from(beat).map_or(' ', |beat| SPINNER[beat % SPINNER.len()]);
        let mut head = format!("{spinner} {}  ", cut(&self.name, (columns / 3).max(8)));
        if let Some(fraction) = self.fraction {
            let _ = write!(head, "{} {:>3.0} %  ", bar(fraction, columns / 5), fraction * 100.0);
        }
        head.push_str(&clock(elapsed));
        let below = [self.last.as_str(), self.stdout.held(), self.stderr.held()];
        let message = self.message.as_deref().unwrap_or_default();
        if !below.iter().any(|line| says_again(message, line)) {
            let _ = write!(head, "  {}", plain(message));
        }
        let head = head.trim_end();
        cut(head, columns)
    }

    /// Returns the last lines of output, each after a line break.
    fn tail(&self, columns: usize, rows: usize) -> String {
        let lines: Vec<_> = self.shown().collect();
        let room = TAIL.min(rows.saturating_sub(2));
        let shown = &lines[lines.len().saturating_sub(room)..];
        shown.iter().map(|line| format!("\n{}", cut(&format!("  {line}"), columns))).collect()
    }

    fn shown(&self) -> impl Iterator<Item = String> {
        let unfinished = [&self.stdout, &self.stderr].map(|unfinished| plain(unfinished.held()));
        let unfinished = unfinished.into_iter().filter(|line| !line.trim().is_empty());
        self.tail.iter().cloned().chain(unfinished)
    }
}

fn push(tail: &mut VecDeque<String>, line: &str) {
    let line = plain(line);
    if line.trim().is_empty() {
        return;
    }
    if tail.len() == TAIL {
        tail.pop_front();
    }
    tail.push_back(line);
}

/// Draws a bar of `columns` columns, at least 8 and at most 24.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "it is between nothing and a screen's width"
)]
fn bar(fraction: f64, columns: usize) -> String {
    let columns = columns.clamp(8, 24);
    let done = (fraction.clamp(0.0, 1.0) * columns as f64).round() as usize;
    format!("{}{}", "█".repeat(done), "░".repeat(columns - done))
}

/// Returns the width and height of the terminal.
fn columns() -> (usize, usize) {
    match tcgetwinsize(stderr()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        Ok(_) | Err(_) => (80, 24),
    }
}

/// Returns true if standard error is a terminal and this process is in its foreground. A bar of a
/// background process would overwrite another program's screen.
fn is_ours() -> bool {
    stderr().is_terminal() && tcgetpgrp(stderr()).is_ok_and(|group| group == getpgrp())
}

impl Quiet {
    fn begin() -> Option<Self> {
        let mut modes = tcgetattr(stderr()).ok()?;
        if !modes.local_modes.contains(LocalModes::ECHOCTL) {
            return None;
        }
        modes.local_modes.remove(LocalModes::ECHOCTL);
        tcsetattr(stderr(), OptionalActions::Now, &modes).ok()?;
        Some(Self)
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        if let Ok(mut modes) = tcgetattr(stderr())
            && is_ours()
        {
            modes.local_modes.insert(LocalModes::ECHOCTL);
            let _ = tcsetattr(stderr(), OptionalActions::Now, &modes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scene(said: impl IntoIterator<Item = Said>) -> Scene {
        let view = View::new("say_hello", Duration::from_secs(7));
        said.into_iter().for_each(|said| view.take(said));
        Arc::into_inner(view.0).unwrap().into_inner().unwrap()
    }

    fn printed(text: &str) -> Said {
        Said::Printed { stream: Stream::Stdout, text: text.to_owned() }
    }

    #[test]
    fn a_bar_is_drawn_where_it_is_known_how_far_it_is() {
        let far = |fraction| Said::Progress { fraction, message: Some("linking".to_owned()) };
        let head = |said: Said, columns| scene([said]).head(columns)["⠋".len()..].to_owned();
        assert_eq!(head(far(None), 80), " say_hello  0:07  linking");
        assert_eq!(head(far(Some(0.5)), 80), " say_hello  ████████░░░░░░░░  50 %  0:07  linking");
        assert_eq!(head(far(Some(0.5)), 40), " say_hello  ████░░░░  50 %  0:07  link…");
        assert_eq!(head(far(Some(1.0)), 20), " say_hel…  ███████…");
    }

    #[test]
    fn the_last_lines_are_shown_cut_and_harmless() {
        let lines: String =
            (1..=9).map(|n| format!("\u{1b}[3{n}mline {n} is long\u{1b}[0m\n")).collect();
        let scene = scene([printed(&lines), printed("and more")]);
        let tail = "\n  line 6 i…\n  line 7 i…\n  line 8 i…\n  line 9 i…\n  and more";
        assert_eq!(scene.tail(11, 24), tail);
        assert_eq!(scene.tail(80, 3), "\n  and more");
    }

    #[test]
    fn a_message_that_is_shown_below_is_not_shown_twice() {
        let message =
            |message: &str| Said::Progress { fraction: None, message: Some(message.to_owned()) };
        let head = scene([printed("50%\n"), message("50%")]).head(80);
        assert_eq!(&head["⠋".len()..], " say_hello  0:07");
    }
}
