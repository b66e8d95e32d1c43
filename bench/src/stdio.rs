//! Measures a call over standard streams, compared with the least that a program could do and with
//! other servers.

use crate::contenders::{RMCP, echoes};
use crate::row::{ResultRow, Target};
use crate::{RunOptions, lines};

/// Measures calls over standard input and output.
pub(crate) fn measure(run: &RunOptions) -> anyhow::Result<Vec<ResultRow>> {
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
            row.with_target(Target::RatioAtLeast(floor))
                .with_target(Target::PeerRatioAtLeast(RMCP, rmcp)),
        )
    };
    Ok(vec![
        row("echo, stdio, depth 1", 1, 0.6, 3.0)?,
        row("echo, stdio, depth 32", 32, 0.35, 8.0)?,
    ])
}
