//! Measures the release build against the floors.

use crate::shell::{cargo, run};

pub(crate) fn measure(words: &[String]) -> anyhow::Result<()> {
    run(
        &cargo(),
        &[
            "build",
            "--release",
            "--locked",
            "--package",
            "toolgate",
            "--package",
            "bench",
            "--package",
            "example-echo",
        ],
    )?;
    let mut args = vec!["run", "--quiet", "--release", "--locked", "--package", "bench", "--"];
    args.extend(words.iter().map(String::as_str));
    run(&cargo(), &args)
}
