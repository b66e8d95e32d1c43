//! Commands for developers: `cargo xtask COMMAND`. CI runs the same commands.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a tool for developers: it owns the checkout that it runs in and prints for a person"
)]

mod shell;
mod setup;
mod test;
mod codegen;
mod rooms;
mod architecture;
mod site;
mod examples;
mod tidy;
mod bench;
mod programs;
mod conformance;
mod count;
mod contracts;
mod dist;
mod eval;
mod fuzz;
mod doc;
mod stages;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask COMMAND

  demo [--built]       build toolgate, serve this checkout and make one call against it. --built
                       takes the program that the last build left
  test [--quick]       run everything CI runs and print what each stage took. It installs what is
                       missing into .tools. --quick runs the format check, lints and the quick
                       tests of single crates, of MCP and of HTTP
  setup                install what the tests need into .tools

Parts of the test, which also run alone:
  conformance [--through [--from CLIENT] [--edge EDGE] | --client | --fleet]
              [--scenario NAME] [--revision REVISION] [--keep]
                       run MCP's conformance suite against an example server and print each check
                       that fails. --client runs the suite's servers against toolgate as a client.
                       --through puts toolgate between client and server, for each pair of
                       revisions and transports (or those whose names contain CLIENT and EDGE), and
                       writes the results of a whole run to docs/reference. --keep keeps the
                       suite's own output. --fleet puts HAProxy and three toolgates with one database
                       between client and server
  contracts [--seed NAME] [--list | --last]
                       run the tests that show the requirements of the five contracts, print which
                       hold and write docs/reference/contracts.md. --list prints which requirements
                       have tests, --last uses the results of the last test run
  doc                  run the examples in doc comments and build the documentation
  docs [--examples] [--bin FILE]
                       build the site of the documentation into target/site, check its links and its
                       search, and run the examples that are marked as runnable; needs Node, jq and
                       curl. --examples runs only the examples, --bin runs them with an existing
                       binary
  count [--keep]       count the instructions from a request's bytes to its answer's, and fail if
                       they grew by more than 5 %. --keep records the new counts
  codegen [--check]    write the generated pages of docs/reference and the code in ARCHITECTURE.md,
                       or list the pages that are stale
  tidy                 check the rules no compiler knows: dependencies between crates and between
                       the modules of each crate, licenses, length of files, and the files
                       and names in ARCHITECTURE.md

Packages:
  dist [--dev] [--target TRIPLE] [--out DIR] [--bin FILE] [--only KIND].. [--sysroot DIR]
       [--repository OWNER/NAME] [--index]
                       build toolgate as it is shipped (half an hour) and write its packages into
                       target/packages/TRIPLE: tarball, .deb, wheel, npm packages, OCI image, MCP
                       bundle, bill of materials, server.json and checksums. --dev packs a quick build for this
                       machine, --bin an existing binary, --only some kinds of packages. --sysroot
                       has the C library of TRIPLE, for the image. --repository is the repository
                       that the packages name. --index only writes server.json and the checksums
                       for the packages in DIR

Programs behind some of the tests, for long runs and for a selection:
  attack [--case ID].. [--dialect NAME] [--bin FILE] [--release] [--keep] [--verbose]
                       attack the server as callers, files and programs would, in every dialect and
                       over every transport, and print one line for each case. ID may be the start
                       of one. --bin attacks an existing binary, --verbose prints each attempt
  attack --resources [--minutes N] [--seed S] [--untimed] [--bin FILE] [--keep]
                       attack the memory and the time of the release build at random for N minutes
                       (5), with a limit of 1 GiB, while other callers work. Fails if a normal call
                       fails, their p99 reaches 250 ms, the server exits, or it keeps 400 MiB.
                       --untimed judges only failures, exits and the limit
  chaos [--kills N | --gateway [--minutes N] | --fleet [--minutes N] [--part NAME] [--figures]]
        [--seed S] [--debug | --server FILE]
                       kill the server N times (200) while jobs arrive, and check that no job is
                       lost or runs twice and no process is left. For N minutes (10), --gateway
                       kills the clients and upstreams of a gateway instead. --fleet kills the
                       workers of a fleet, crashes its database, lets the database fail over, and
                       restarts servers behind HAProxy. It then prints a table of figures. The parts
                       are kills, failover, restarts and figures. --figures measures with 100,000
                       waiting jobs and fails if a figure is missed

Long runs, for a schedule or by hand:
  fuzz [TARGET].. [--seconds N] [--merge | --again FILE]
                       fuzz every parser of untrusted bytes for N seconds (8) each, starting from
                       the kept inputs. --merge keeps inputs that reach new code, --again runs one
                       input and prints its output
  bench [--quick] [--alone] [SECTION...]
                       measure toolgate, the least possible server and other servers in one run,
                       and print the tables. It measures the executable that `dist` packs, which takes
                       half an hour to build. A whole run is written to docs/reference. --quick measures
                       the release build, --alone leaves other servers out. Sections: stdio web files
                       start gate gateway jobs search vectors scale
  bench --console [--records N] [--consoles N] [--seconds N]
                       measure each page of the console over an audit log of N (10 million) records,
                       and what N (50) open pages cost the calls of others. It needs python3, and
                       5 GB on the disk of temporary files
  bench --forwarder [--rounds N]
                       measure the time that the forwarder adds to a connection of a program in the
                       sandbox, and the throughput of a download of 100 MB. It needs python3
  eval-search [--fresh | --split report | --split tune] [--no-model] [--queries N]
              | --rules [--split S] | --draw SEED | --commits REPOSITORY..
                       measure how well search ranks, compared with baselines, on packages that
                       were not used to tune it, and print the tables. --rules leaves out each rule
                       and tries other weights, on the tuning packages. --fresh measures the fresh
                       packages alone, and --draw draws new ones. --commits finds the files of
                       commits by their subjects
  eval-tools [--split report | tune] [--no-model]
                       measure how well tool search ranks, compared with baselines, and what it
                       costs in tokens and time, and print the tables
  train-search words | networks
                       train the built-in word vectors or ranking networks, on data that is not
                       used for reports
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Some(code) = fuzz::stand_in(&args).or_else(|| doc::stand_in(&args)) {
        return code;
    }
    let flag = |name: &str| args.iter().any(|word| word == name);
    let outcome = match args.first().map(String::as_str) {
        Some("test") => test::everything(flag("--quick")),
        Some("setup") => setup::everything(),
        Some("bench") => bench::measure(&args[1..]),
        Some("count") => count::count(flag("--keep")),
        Some("chaos") => programs::chaos(&args[1..]),
        Some("attack") => programs::attack(&args[1..]),
        Some("fuzz") => fuzz::run_command(&args[1..]),
        Some("conformance") => conformance::run_command(&args[1..]),
        // The suite starts this command, with the address of its server.
        Some("conformance-driver") => conformance::drive(args.get(1).map_or("", String::as_str)),
        Some("contracts") => contracts::run_command(&args[1..]),
        Some("eval-search") => eval::search(&args[1..]),
        Some("eval-tools") => eval::tools(&args[1..]),
        Some("train-search") => eval::train(&args[1..]),
        Some("doc") => doc::check(),
        Some("docs") => site::from_words(&args[1..]),
        Some("dist") => dist::from_words(&args[1..]),
        // `cargo xtask test` runs the demo from here. `cargo xtask demo` does not start this program.
        Some("demo") if args[1..] == ["--built"] => {
            let launcher = shell::target_folder().join("debug/xtask-launcher");
            shell::run(&launcher.to_string_lossy(), &["demo", "--built"])
        }
        Some("codegen") => codegen::pages(flag("--check")),
        Some("tidy") => tidy::check(),
        Some("help" | "--help" | "-h") | None => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Some(word) => {
            eprintln!("xtask: unknown command `{word}`\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("xtask: {err:#}");
            ExitCode::FAILURE
        }
    }
}
