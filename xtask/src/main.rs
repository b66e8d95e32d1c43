//! What a developer runs: `cargo xtask WORD`. Plain Rust; CI only calls it.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a developer's tool, which owns the checkout it runs in and talks to a person"
)]

mod shell;
mod setup;
mod test;
mod codegen;
mod tidy;
mod bench;
mod attack;
mod chaos;
mod conformance;
mod count;
mod contracts;
mod demo;
mod eval;
mod fuzz;
mod release;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask WORD

  demo                 build, serve this checkout and make one call against it
  test [--quick]       everything CI runs: format, clippy, tests, docs, tidy, generated
                       files, real clients, MCP's conformance suite; installs what is
                       missing. --quick leaves out what needs that
  setup                install what the tests need, into .tools
  release              build toolgate as it is given out: twice, the second time by what the
                       benchmark's calls of the first were seen to do, which has it answer a
                       tenth to a quarter more; print where it is (target/released)
  bench [--quick] [--alone] [SECTION...]
                       measure against the floors and others' servers, in one run, and print the
                       tables; a whole run is of the release, and kept in docs/reference. --quick
                       is of what `cargo build --release` makes; --alone leaves others out.
                       Sections: stdio web files start gate gateway jobs search vectors scale
  count [--keep]       count the instructions of a request between its bytes and the answer's,
                       and fail where they are 5 % more than is kept; --keep keeps them
  chaos [--kills N | --gateway [--minutes N]] [--seed S] [--debug | --server FILE]
                       kill the server N times, at every bad moment, while jobs come in, and
                       see that none is lost, none runs twice and nothing is left running; with
                       --gateway kill its clients and upstreams for N minutes (10) instead, and
                       see that nobody else notices and nothing is left
  attack [--case ID].. [--dialect NAME] [--bin FILE] [--release] [--keep] [--verbose]
                       attack the server as callers, files and programs would, by every dialect
                       and transport, and print a line a case; ID may be the beginning of one,
                       --bin attacks a binary that is built already, --verbose prints each play
  fuzz [TARGET].. [--seconds N] [--merge | --again FILE]
                       feed every parser of foreign bytes what nobody would write, from the kept
                       inputs on, for so many seconds each (8), and print a line a target; --merge
                       keeps what leads somewhere new, --again runs one input and shows what comes
  conformance [--through [--from CLIENT] [--edge EDGE] | --client]
              [--scenario NAME] [--revision REVISION] [--keep]
                       hold an example server against MCP's own conformance suite, for each
                       revision, print each check that fails and how many pass; --through puts
                       toolgate between the two, prints a line for each pair of revisions and wires
                       (of clients and edges with CLIENT and EDGE in their names), and keeps a
                       whole run in docs/reference; --client holds what toolgate is to its
                       upstreams against the suite's servers; --keep keeps what the suite wrote down
  contracts [--seed NAME] [--list | --last]
                       run the tests that show the requirements of the five contracts, print
                       which rows hold and write docs/reference/contracts.md; --list only says
                       which rows have tests, --last judges by the tests that ran last
  eval-search [--split report | tune] [--no-model] [--queries N]
                       measure how well search ranks, beside its baselines, on packages nobody
                       tuned on, print the tables and keep them in docs/reference (a whole run)
  train-search words | networks
                       learn the vectors of words, or how a closer look weighs what it sees, and
                       write them where they are built in; what is reported is not learned from
  codegen [--check]    write docs/reference from the code, or say what is stale
  tidy                 the rules no compiler knows: arrows between crates, licences, files
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Some(code) = fuzz::stand_in(&words) {
        return code;
    }
    let flag = |name: &str| words.iter().any(|word| word == name);
    let done = match words.first().map(String::as_str) {
        Some("test") => test::everything(flag("--quick")),
        Some("setup") => setup::everything(),
        Some("bench") => bench::measure(&words[1..]),
        Some("release") => release::build().map(|at| println!("{}", at.join("toolgate").display())),
        Some("count") => count::count(flag("--keep")),
        Some("chaos") => chaos::from_words(&words[1..]),
        Some("attack") => attack::from_words(&words[1..]),
        Some("fuzz") => fuzz::from_words(&words[1..]),
        Some("conformance") => conformance::from_words(&words[1..]),
        // Which the suite starts, with the place of its server.
        Some("conformance-driver") => conformance::drive(words.get(1).map_or("", String::as_str)),
        Some("contracts") => contracts::from_words(&words[1..]),
        Some("eval-search") => eval::search(&words[1..]),
        Some("train-search") => eval::train(&words[1..]),
        Some("demo") => demo::serve_and_call(),
        Some("codegen") => codegen::pages(flag("--check")),
        Some("tidy") => tidy::check(),
        Some("help" | "--help" | "-h") | None => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Some(word) => {
            eprintln!("xtask: no word `{word}`\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("xtask: {err:#}");
            ExitCode::FAILURE
        }
    }
}
