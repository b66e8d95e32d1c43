//! What a call costs over standard streams, beside the least that a program could do, and beside
//! what others make of it.

use crate::contenders::{RMCP, echoes};
use crate::row::{Asked, Row};
use crate::{Run, lines};

pub(crate) fn measure(run: &Run) -> anyhow::Result<Vec<Row>> {
    let mut echoes = echoes(run)?;
    let mut row = |what, depth, floor, rmcp| {
        let row = run.row(
            what,
            "/s",
            &mut echoes,
            |it| it.name,
            |it| lines::rate(&mut it.child, depth, run.time, &it.question),
        )?;
        anyhow::Ok(row.asked(Asked::Ratio(floor)).asked(Asked::Times(RMCP, rmcp)))
    };
    Ok(vec![
        row("echo, stdio, depth 1", 1, 0.6, 3.0)?,
        row("echo, stdio, depth 32", 32, 0.35, 8.0)?,
    ])
}
