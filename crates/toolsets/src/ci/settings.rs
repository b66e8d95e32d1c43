//! Settings of the `ci` toolset.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Environment and limits for building and testing projects. The section `[exec]` controls which
/// programs may be run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CiSettings {
    /// Names of the server's environment variables that build tools receive, in addition to
    /// `exec.env_keep`. By default, these are the locations of build tools and caches, such as
    /// `CARGO_HOME`.
    pub env_keep: Vec<String>,
    /// Timeout of a build or test run in milliseconds, if the call does not set one. Default:
    /// 600000. Maximum: 600000.
    pub timeout_ms: u64,
    /// Bytes at the end of the output that a result shows, if the call does not set a number.
    /// Default: 8192.
    pub output_bytes: usize,
    /// Most failures that a result lists. Default: 50.
    pub failures_max: usize,
}

impl Default for CiSettings {
    fn default() -> Self {
        let env_keep = [
            "CARGO_HOME",
            "CARGO_TARGET_DIR",
            "DOTNET_ROOT",
            "GOCACHE",
            "GOMODCACHE",
            "GOPATH",
            "GRADLE_USER_HOME",
            "JAVA_HOME",
            "NUGET_PACKAGES",
            "PYENV_ROOT",
            "RUSTUP_HOME",
            "RUSTUP_TOOLCHAIN",
            "VIRTUAL_ENV",
            "XDG_CACHE_HOME",
        ];
        Self {
            env_keep: env_keep.map(str::to_owned).into(),
            timeout_ms: 600_000,
            output_bytes: 8 << 10,
            failures_max: 50,
        }
    }
}
