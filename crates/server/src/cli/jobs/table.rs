//! Formats jobs as a table.

use std::io::{IsTerminal, stdout};

use console::{Alignment, measure_text_width, pad_str};
use jiff::Timestamp;
use rustix::termios::tcgetwinsize;
use toolgate_contract::{JobSnapshot, fold_name};

use super::describe::{error, progress_text, running_time, time_between};
use crate::cli::follow::terminal_text::{cut_to_width, format_age, format_duration, plain_line};

const HEADS: [&str; 7] = ["JOB", "TOOL", "STATE", "DONE", "WHEN", "RAN", "MESSAGE"];
/// Indexes of the columns that the table of jobs omits on a narrow terminal, in the order in which
/// it omits them.
const DROPPED_FIRST: [usize; 3] = [5, 3, 4];
/// Width of the message column, in characters, below which other columns are dropped.
const MESSAGE_WIDTH_MIN: usize = 12;
/// Number of digits of a job's id that the table shows.
const DIGITS: usize = 8;
/// Text between two columns of the table.
const GAP: &str = "  ";

/// Formats a table of `jobs`, at most as wide as the terminal.
pub(super) fn format_table(jobs: &[JobSnapshot]) -> String {
    let width = if stdout().is_terminal() {
        tcgetwinsize(stdout()).ok().map(|size| usize::from(size.ws_col)).filter(|width| *width > 0)
    } else {
        None
    };
    let now = Timestamp::now();
    let rows = jobs.iter().map(|job| row(job, now)).collect();
    format_rows(rows, width)
}

/// Returns the first eight digits of a job's id, which usually identify the job.
pub(super) fn short_id(job: &JobSnapshot) -> String {
    job.id.to_string().chars().take(DIGITS).collect()
}

fn row(job: &JobSnapshot, now: Timestamp) -> [String; 7] {
    let message = error(job).map(ToString::to_string).or_else(|| job.message.clone());
    let message = message.unwrap_or_default();
    [
        short_id(job),
        fold_name(job.tool.as_str()).into_owned(),
        job.state.as_str().to_owned(),
        progress_text(job),
        format_age(time_between(job.created, now)),
        running_time(job, now).map(format_duration).unwrap_or_default(),
        // The first line summarizes an error of several lines.
        plain_line(message.lines().next().unwrap_or_default()),
    ]
}

fn format_rows(mut rows: Vec<[String; 7]>, width: Option<usize>) -> String {
    rows.insert(0, HEADS.map(str::to_owned));
    let wide =
        |column: usize| rows.iter().map(|row| measure_text_width(&row[column])).max().unwrap_or(0);
    let widths: Vec<usize> = (0..HEADS.len()).map(wide).collect();
    let mut shown: Vec<usize> = (0..HEADS.len()).collect();
    if let Some(width) = width {
        let last = HEADS.len() - 1;
        let message_width = MESSAGE_WIDTH_MIN.min(widths[last]);
        for dropped in DROPPED_FIRST {
            let fixed: usize =
                shown.iter().filter(|it| **it != last).map(|it| widths[*it] + GAP.len()).sum();
            if fixed + message_width > width {
                shown.retain(|column| *column != dropped);
            }
        }
    }
    let line = |row: &[String; 7]| {
        let cells = shown
            .iter()
            .map(|column| pad_str(&row[*column], widths[*column], Alignment::Left, None));
        let line = cells.collect::<Vec<_>>().join(GAP);
        let line = line.trim_end();
        format!("{}\n", width.map_or_else(|| line.to_owned(), |width| cut_to_width(line, width)))
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<[String; 7]> {
        let row = [
            "3f9a0c11",
            "say_hello",
            "running",
            "40 %",
            "3 min ago",
            "2 min 50 s",
            "linking it all",
        ];
        vec![row.map(str::to_owned)]
    }

    #[test]
    fn a_table_is_as_wide_as_its_cells_or_as_the_terminal() {
        let wide = "JOB       TOOL       STATE    DONE  WHEN       RAN         MESSAGE\n\
                    3f9a0c11  say_hello  running  40 %  3 min ago  2 min 50 s  linking it all\n";
        assert_eq!(format_rows(rows(), None), wide);
        assert_eq!(format_rows(rows(), Some(80)), wide);
        let narrow = "JOB       TOOL       STATE    MESSAGE\n\
                      3f9a0c11  say_hello  running  linking i…\n";
        assert_eq!(format_rows(rows(), Some(40)), narrow);
        let tiny = format_rows(rows(), Some(12));
        assert!(tiny.lines().all(|line| measure_text_width(line) <= 12), "{tiny}");
    }
}
