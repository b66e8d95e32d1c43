//! Measures a call over standard streams, compared with a minimal program and with other servers.

use crate::contenders::{RMCP, echoes};
use crate::row::{BenchResultRow, PerformanceGoal};
use crate::{BenchRunOptions, lines};

/// Measures calls of toolgate and other servers over standard input and output.
pub(crate) fn measure(run: &BenchRunOptions) -> anyhow::Result<Vec<BenchResultRow>> {
    let mut echoes = echoes(run)?;
    let mut row = |what, depth, floor, rmcp| {
        let row = run.measure_rates(
            what,
            &mut echoes,
            |server| server.name,
            |server| Some(&server.child),
            |server| lines::rate(&mut server.child, depth, run.time, &server.question),
        )?;
        anyhow::Ok(
            row.with_target(PerformanceGoal::RatioAtLeast(floor))
                .with_target(PerformanceGoal::PeerRatioAtLeast(RMCP, rmcp)),
        )
    };
    Ok(vec![
        row("echo, stdio, depth 1", 1, 0.6, 3.0)?,
        row("echo, stdio, depth 32", 32, 0.35, 8.0)?,
    ])
}
