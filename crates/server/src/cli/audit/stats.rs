//! Counts calls by caller, tool, outcome or time (`toolgate audit stats`).

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use serde_json::{Map, Value, json};
use toolgate_contract::printable::escape_line;
use toolgate_host::{AuditIndex, CallGrouping, CallStatistics};
use toolgate_service::telemetry::call_lines::duration_text;

use super::{AuditFilterArgs, is_missing, no_log_message};
use crate::cli::{complain, print};

#[derive(clap::Args)]
pub(super) struct AuditStatsArgs {
    /// Properties to group calls by
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [AuditGroupArg::Tool])]
    by: Vec<AuditGroupArg>,
    /// Print one line of JSON per group
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    select: AuditFilterArgs,
}

/// Property by which `toolgate audit stats` groups calls, as an option of the command line.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum AuditGroupArg {
    Caller,
    Tool,
    Outcome,
    Day,
    Hour,
}

impl AuditGroupArg {
    fn group(self) -> CallGrouping {
        match self {
            Self::Caller => CallGrouping::Caller,
            Self::Tool => CallGrouping::Tool,
            Self::Outcome => CallGrouping::Outcome,
            Self::Day => CallGrouping::Day,
            Self::Hour => CallGrouping::Hour,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Caller => "caller",
            Self::Tool => "tool",
            Self::Outcome => "outcome",
            Self::Day => "day",
            Self::Hour => "hour",
        }
    }
}

pub(super) fn run(args: &AuditStatsArgs, log: &Path) -> anyhow::Result<ExitCode> {
    if is_missing(log) {
        complain(&no_log_message(log));
        return Ok(ExitCode::SUCCESS);
    }
    let groups: Vec<_> = args.by.iter().map(|by| by.group()).collect();
    let read = || {
        let mut index = AuditIndex::open(log)?;
        index.update()?;
        index.statistics(&groups, &args.select.filter())
    };
    let statistics = read().with_context(|| {
        let path = AuditIndex::path(log);
        format!(
            "cannot update the index {} of the audit log; you can delete the index",
            path.display()
        )
    })?;
    let names: Vec<_> = args.by.iter().map(|by| by.name()).collect();
    match args.json {
        true => print(&json_lines(&names, &statistics))?,
        false => print(&table(&names, &statistics))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn json_lines(names: &[&str], statistics: &[CallStatistics]) -> String {
    let line = |one: &CallStatistics| {
        let group = names.iter().zip(&one.group);
        let mut fields: Map<String, Value> =
            group.map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        let numbers = json!({
            "calls": one.calls,
            "failed": one.failed,
            "mean_us": one.mean_us(),
            "median_us": one.percentile_us(50),
            "p99_us": one.percentile_us(99),
            "longest_us": one.longest_us,
        });
        fields.extend(numbers.as_object().cloned().unwrap_or_default());
        format!("{}\n", Value::Object(fields))
    };
    statistics.iter().map(line).collect()
}

fn table(names: &[&str], statistics: &[CallStatistics]) -> String {
    let heads = ["calls", "failed", "mean", "median", "p99", "longest"];
    let head = names.iter().chain(&heads).map(|name| (*name).to_owned()).collect();
    let rows = statistics.iter().map(|one| {
        let group = one.group.iter().map(|value| escape_line(value).into_owned());
        let numbers = [
            one.calls.to_string(),
            one.failed.to_string(),
            duration_text(one.mean_us()),
            duration_text(one.percentile_us(50)),
            duration_text(one.percentile_us(99)),
            duration_text(one.longest_us),
        ];
        group.chain(numbers).collect::<Vec<_>>()
    });
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
    let widths: Vec<usize> = (0..names.len() + heads.len())
        .map(|at| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or_default())
        .collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(at, (cell, &width))| {
            // Numbers are aligned at their end.
            match at < names.len() {
                true => format!("{cell:width$}"),
                false => format!("{cell:>width$}"),
            }
        });
        format!("{}\n", cells.collect::<Vec<_>>().join("  "))
    };
    rows.iter().map(line).collect()
}
