//! Lays out programs anew once they are linked: what runs after what lies beside it, and what does
//! not run lies apart (LLVM's BOLT).
//!
//! The compiler knows how often each function ran, not in which order over crates and libraries,
//! and the linker puts them as they come. A call that waits for its code to come into the cache
//! waits for fewer lines of it, and for fewer pages.

use std::fs;
use std::path::Path;

use anyhow::Context;

use super::{PROGRAMS, call, emptied};
use crate::setup;
use crate::shell::run;

/// Has the linker keep what is needed to move code.
pub(super) const MOVABLE: &str = "-Clink-arg=-Wl,--emit-relocs";
/// What is counted, at every branch: what an agent does all day.
const CALLS: [&str; 8] =
    ["--quick", "--alone", "stdio", "web", "files", "start", "gateway", "jobs"];
/// How blocks, then functions, are put in order; and what did not run is put apart. Aligned for huge
/// pages, code would stay in the memory of a server that lets go of it.
const ORDER: [&str; 7] = [
    "-no-huge-pages",
    "-reorder-blocks=ext-tsp",
    "-reorder-functions=cdsort",
    "-split-functions",
    "-split-all-cold",
    "-split-eh",
    "-icf=1",
];

/// Writes the programs of `linked` to `released`, laid out by what ran when the benchmark called
/// them. What is counted is kept in `work`.
pub(super) fn lay_out(linked: &Path, released: &Path, work: &Path) -> anyhow::Result<()> {
    let (bolt, merge) = (setup::bolt("llvm-bolt")?, setup::bolt("merge-fdata")?);
    let counts = work.join("counts");
    emptied(&counts)?;
    for program in PROGRAMS {
        let file = counts.join(program).display().to_string();
        let into = format!("-instrumentation-file={file}");
        // Each process writes its own, or the last one's would be all there is.
        let each = "-instrumentation-file-append-pid";
        rewrite(&bolt, program, linked, work, &["-instrument", &into, each])?;
    }
    call(work, &CALLS, &[])?;
    fs::create_dir_all(released).with_context(|| released.display().to_string())?;
    for program in PROGRAMS {
        let counted = merged(&merge, &counts, program)?;
        let data = format!("-data={counted}");
        let words = [&[&*data, "-use-gnu-stack"], &ORDER[..]].concat();
        rewrite(&bolt, program, linked, released, &words)?;
    }
    Ok(())
}

/// Has BOLT write `program`, which may run, from one folder to another.
fn rewrite(
    bolt: &str,
    program: &str,
    from: &Path,
    to: &Path,
    words: &[&str],
) -> anyhow::Result<()> {
    let (from, to) = (from.join(program), to.join(program));
    let new = to.with_extension("new");
    let (from, into) = (from.display().to_string(), new.display().to_string());
    run(bolt, &[&[&*from, "-o", &into], words].concat())?;
    fs::rename(&new, &to).with_context(|| to.display().to_string())
}

/// The file with what all processes of `program` counted.
fn merged(merge: &str, counts: &Path, program: &str) -> anyhow::Result<String> {
    let all = counts.join(format!("{program}.fdata")).display().to_string();
    let mut words = vec!["-o".to_owned(), all.clone()];
    for file in fs::read_dir(counts).with_context(|| counts.display().to_string())? {
        let file = file?;
        let of = file.file_name().to_string_lossy().into_owned();
        if of.strip_prefix(program).is_some_and(|rest| rest.starts_with('.') && rest != ".fdata") {
            words.push(file.path().display().to_string());
        }
    }
    run(merge, &words.iter().map(String::as_str).collect::<Vec<_>>())?;
    Ok(all)
}
