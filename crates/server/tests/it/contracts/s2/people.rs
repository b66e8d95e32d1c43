//! Tests with MCP clients of other projects, and with toolgate alone.

use std::process::{Command, Stdio};

use crate::clients::{SdkClientDriver, check_passes};
use crate::support::{ServerLaunchOptions, TempWorkspace, binary, path};

#[test]
fn s2_02_26_39_the_typescript_and_python_sdks_work_over_both_transports() {
    let workspace = TempWorkspace::new().file("toolgate.toml", super::client::ALONE);
    let served = ServerLaunchOptions::over(&workspace).served();
    let alone = super::client::own_address(&served);
    let urls = [format!("http://{}/workstation", served.addr), format!("http://{alone}/mcp")];
    let root = workspace.root().to_str().unwrap();
    let mut typescript = SdkClientDriver::TypeScriptWorkstation.command();
    typescript.args(["--workspace", root]).arg("--toolgate").arg(binary());
    check_passes(urls.iter().fold(typescript, |mut driver, url| {
        driver.args(["--url", url]);
        driver
    }));
    let python = |mode: [&str; 2]| {
        let mut driver = SdkClientDriver::PythonWorkstation.command();
        driver.args(["--workspace", root]).args(mode);
        driver
    };
    for mode in [["--mode", "auto"], ["--mode", "legacy"], ["--revision", "2024-11-05"]] {
        let mut driver = python(mode);
        driver.arg("--stdio").arg(binary()).args(["stdio", root, "--dialect", "workstation"]);
        driver.args(["--config", workspace.path("toolgate.toml").to_str().unwrap()]);
        check_passes(driver);
    }
    for (mode, url) in [
        (["--mode", "legacy"], &urls[0]),
        (["--revision", "2025-03-26"], &urls[0]),
        (["--mode", "auto"], &urls[1]),
    ] {
        let mut driver = python(mode);
        driver.args(["--url", url]);
        check_passes(driver);
    }
}

#[test]
fn s2_23_the_server_is_one_binary_without_a_runtime() {
    let mut command = Command::new(binary());
    command.arg("--version").env_clear().env("PATH", path()).stdin(Stdio::null());
    let done = command.output().unwrap();
    assert!(done.status.success());
    assert!(String::from_utf8_lossy(&done.stdout).starts_with("toolgate "));
}
