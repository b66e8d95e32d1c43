//! Decrypts the TLS connections of one run of a program, with its certificate authority, and adds
//! credentials to the requests.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use http::header::HeaderMap;
use tokio_rustls::rustls::ServerConfig;
use toolgate_net::RequestPath;

use super::ProgramHostAccess;
use super::credentials::{HostCredential, ResolvedHostCredential};
use super::gate::ForwarderDestination;
use super::run_authority::{RunCertificateAuthority, pem};
use crate::dial;

/// The environment variables that name the file with the certificates that a program trusts.
const TRUST_NAMES: [&str; 7] = [
    "CARGO_HTTP_CAINFO",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_FILE",
];

/// The certificate authority and the credentials with which a forwarder reads the requests of one
/// run of a program.
pub(crate) struct TlsInspector {
    authority: RunCertificateAuthority,
    credentials: Vec<ResolvedHostCredential>,
}

impl TlsInspector {
    /// Creates an inspector for a program with `access`. Returns `None` if no rule has a path, and
    /// no credential of `credentials` is for its hosts. `variable` returns the server's environment
    /// variables. Blocks.
    ///
    /// # Errors
    /// The secret of a credential is missing, or the system has no random numbers.
    pub(crate) fn for_run(
        access: &ProgramHostAccess,
        credentials: &[HostCredential],
        variable: impl Fn(&str) -> Option<String>,
    ) -> io::Result<Option<Self>> {
        let used = credentials.iter().filter(|credential| access.rules.overlap(credential.rule()));
        let filled = used.map(|credential| credential.fill(&variable));
        let credentials = filled.collect::<Result<Vec<_>, _>>().map_err(io::Error::other)?;
        if credentials.is_empty() && !access.rules.has_paths() {
            return Ok(None);
        }
        let authority = RunCertificateAuthority::new().map_err(io::Error::other)?;
        Ok(Some(Self { authority, credentials }))
    }

    /// Returns the certificates that the program trusts, as PEM: the authorities that the system
    /// trusts, and the authority of this run. Blocks.
    pub(crate) fn trusted_certificates(&self) -> String {
        static SYSTEM_CERTIFICATES: OnceLock<String> = OnceLock::new();
        let system = SYSTEM_CERTIFICATES.get_or_init(|| {
            // Without any, each connection to a server fails with the reason.
            let found = dial::system_certificates().unwrap_or_default();
            found.iter().map(pem).collect()
        });
        format!("{system}{}", self.authority.certificate_pem())
    }

    /// Returns true if some requests to `target` get a credential.
    pub(super) fn has_credential(&self, target: &ForwarderDestination) -> bool {
        self.credentials.iter().any(|credential| credential.is_for(target))
    }

    /// Adds to `headers` the first credential for a request to `target` with `path`, if there is a
    /// credential.
    pub(super) fn add_credential(
        &self,
        target: &ForwarderDestination,
        path: &str,
        headers: &mut HeaderMap,
    ) {
        let path = RequestPath::parse(path).ok();
        let mut credentials =
            self.credentials.iter().filter(|credential| credential.is_for(target));
        if let Some(credential) = credentials.find(|it| it.is_for_path(path.as_ref())) {
            credential.apply(headers);
        }
    }

    /// Returns the TLS settings with which the forwarder answers as `target`.
    ///
    /// # Errors
    /// No certificate can have the name of `target`.
    pub(super) fn server_config(
        &self,
        target: &ForwarderDestination,
    ) -> Result<Arc<ServerConfig>, String> {
        self.authority.server_config(&target.host)
    }
}

/// Returns the environment variables that name `file`, the certificates to trust, to programs.
pub(crate) fn trust_variables(file: &Path) -> impl Iterator<Item = (OsString, OsString)> {
    let file = OsString::from(file);
    TRUST_NAMES.into_iter().map(move |name| (OsString::from(name), file.clone()))
}
