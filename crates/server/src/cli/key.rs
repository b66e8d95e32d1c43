//! `toolgate key`: a new key for a caller over HTTP.

use std::process::ExitCode;

use anyhow::Context;
use toolgate::config::{self, Config, Key};

use super::{complain, print};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  toolgate key ci                       a key, and the lines that make it known
  toolgate key ci >> toolgate.toml      the same, with the lines where they belong

The lines go to standard output, the key to standard error, this once: only its digest is kept.
Clients send it as `Authorization: Bearer KEY` or `X-API-Key: KEY`. Once there is one, every
request over HTTP needs one.")]
pub(super) struct Args {
    /// What the caller is to be called in policy, limits, jobs and the audit log
    name: String,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut bits = [0; 32];
    getrandom::fill(&mut bits).context("there is no randomness to make a key of")?;
    let bits: String = bits.iter().map(|byte| format!("{byte:02x}")).collect();
    let secret = format!("toolgate_{bits}");
    let key = Key::of(&args.name, &secret);
    config::check_keys(&Config { keys: vec![key.clone()], ..Config::default() })?;
    let Key { name, sha256 } = key;
    complain(&format!("the key of `{name}`, shown this once: {secret}"));
    print(&format!("\n[[keys]]\nname = \"{name}\"\nsha256 = \"{sha256}\"\n"))?;
    Ok(ExitCode::SUCCESS)
}
