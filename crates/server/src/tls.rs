//! TLS certificate and key of the server, read again when their files change.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;

use crate::config::Server;
use crate::session::locked;
use crate::trusted::{self, Links, Stamp};

/// Shortest time between two checks of the files, which occur when clients connect.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Returns the TLS settings for the certificate and key of `server`, or `None` if it has none.
///
/// # Errors
/// When the PEM files cannot be read, or the key does not belong to the certificate.
pub(crate) fn configured(server: &Server) -> anyhow::Result<Option<Arc<ServerConfig>>> {
    let (Some(certificate), Some(key)) = (&server.tls_certificate, &server.tls_key) else {
        return Ok(None);
    };
    let certificate = PathBuf::from(certificate);
    let key = PathBuf::from(key);
    let provider = Arc::new(ring::default_provider());
    let shown = Shown::read(Files { certificate, key }, provider.clone())?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(shown));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Some(Arc::new(config)))
}

/// Certificate resolver with the current certificate.
#[derive(Debug)]
struct Shown {
    files: Files,
    provider: Arc<CryptoProvider>,
    in_force: Mutex<Arc<CertifiedKey>>,
    looked: Mutex<Looked>,
}

#[derive(Debug)]
struct Files {
    certificate: PathBuf,
    key: PathBuf,
}

/// Time of the last check, and the stamps of the files that were read.
#[derive(Debug)]
struct Looked {
    at: Instant,
    stamps: [Option<Stamp>; 2],
}

impl Shown {
    fn read(files: Files, provider: Arc<CryptoProvider>) -> anyhow::Result<Self> {
        let (key, stamps) = files.read(&provider)?;
        if trusted::is_open_to_all(&files.key) {
            let shown = files.key.display();
            tracing::warn!("{shown}, the key of server.tls_key, can be read by every user here");
        }
        let looked = Looked { at: Instant::now(), stamps };
        Ok(Self { files, provider, in_force: Mutex::new(key), looked: Mutex::new(looked) })
    }

    /// Reads the files again if they have changed. Clients that connect meanwhile get the previous
    /// certificate.
    fn look_again(&self) {
        let Ok(mut looked) = self.looked.try_lock() else { return };
        if looked.at.elapsed() < LOOK_AGAIN {
            return;
        }
        looked.at = Instant::now();
        let stamps = self.files.stamps();
        if stamps == looked.stamps {
            return;
        }
        match self.files.read(&self.provider) {
            Ok((key, stamps)) => {
                *locked(&self.in_force) = key;
                looked.stamps = stamps;
                tracing::info!("the certificate was read again");
            }
            // If only one of the two files is new yet, the next check tries again.
            Err(err) => {
                tracing::warn!("the certificate stays as it was: {err:#}");
            }
        }
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.look_again();
        Some(locked(&self.in_force).clone())
    }
}

impl Files {
    fn stamps(&self) -> [Option<Stamp>; 2] {
        [&self.certificate, &self.key].map(|path| trusted::stamp_of(path))
    }

    fn read(
        &self,
        provider: &CryptoProvider,
    ) -> anyhow::Result<(Arc<CertifiedKey>, [Option<Stamp>; 2])> {
        let (chain, first) = trusted::read(&self.certificate, Links::Followed)
            .context("in server.tls_certificate")?;
        let (key, second) =
            trusted::read(&self.key, Links::Followed).context("in server.tls_key")?;
        let shown = self.certificate.display();
        let chain: Vec<_> = CertificateDer::pem_slice_iter(&chain)
            .collect::<Result<_, _>>()
            .map_err(|err| anyhow!("{shown} is no PEM: {err}"))?;
        if chain.is_empty() {
            return Err(anyhow!("{shown} has no certificate in it"));
        }
        let shown = self.key.display();
        let key = PrivateKeyDer::from_pem_slice(&key)
            .map_err(|_| anyhow!("{shown} has no private key in PEM in it"))?;
        let key = CertifiedKey::from_der(chain, key, provider).map_err(|err| {
            let certificate = self.certificate.display();
            let key = self.key.display();
            anyhow!("{certificate} and {key} are no certificate and its key: {err}")
        })?;
        Ok((Arc::new(key), [Some(first), Some(second)]))
    }
}
