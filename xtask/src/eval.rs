//! Measures how well code search and tool search rank, and trains the models of code search.

use crate::shell::{cargo, run_with};

/// Builds the evaluation of code search with optimizations, and runs it with `args`.
pub(crate) fn search(args: &[String]) -> anyhow::Result<()> {
    build_and_run("toolgate-eval", args, &[])
}

/// Builds the evaluation of tool search with optimizations, and runs it with `args`. One baseline
/// is SQLite's FTS5, which the server is built without.
pub(crate) fn tools(args: &[String]) -> anyhow::Result<()> {
    build_and_run("tools", args, &[("LIBSQLITE3_FLAGS", "-DHAVE_FDATASYNC=1")])
}

/// Trains the built-in models of search that `args` select, and writes them into the source.
pub(crate) fn train(args: &[String]) -> anyhow::Result<()> {
    build_and_run("train", args, &[])
}

fn build_and_run(program: &str, args: &[String], env: &[(&str, &str)]) -> anyhow::Result<()> {
    let build = ["run", "--release", "--package", "toolgate-eval", "--bin", program];
    let args = args.iter().map(String::as_str);
    let all: Vec<&str> = build.into_iter().chain(["--"]).chain(args).collect();
    run_with(&cargo(), &all, env)
}
