//! OAuth sign-in at an upstream, with the user's browser.

use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use toolgate_contract::ChangeFeed;
use toolgate_upstream::{AuthorizationStepCallback, UpstreamOAuthAccess, Upstreams};
use toolgate_world::{ProcessRunner, Root};

use crate::assembly::server_prep::PreparedWorkspace;
use crate::config::Config;
use crate::upstreams;

/// Maximum number of browser connections that the sign-in accepts at once.
const BROWSER_CONNECTIONS_MAX: usize = 16;
/// Time for a browser to send its request to the redirect address of the sign-in.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// OAuth sign-in of the user at one upstream.
pub struct UpstreamSignIn {
    name: String,
    access: UpstreamOAuthAccess,
    upstreams: Upstreams,
    processes: ProcessRunner,
}

impl UpstreamSignIn {
    /// Prepares signing in at the upstream `name` of the workspace `root` under `config`.
    ///
    /// # Errors
    /// The upstream does not exist or does not use OAuth.
    pub fn open(root: &Path, config: &Config, name: &str) -> anyhow::Result<Self> {
        let Some(settings) = config.upstream.get(name) else {
            let known: Vec<_> = config.upstream.keys().map(String::as_str).collect();
            match known.is_empty() {
                true => bail!("toolgate.toml has no upstream"),
                false => {
                    bail!("no upstream is named `{name}`; the upstreams are {}", known.join(", "))
                }
            }
        };
        let prep = PreparedWorkspace::prepare(root, config)?;
        let root = Root::open(root)?;
        let world = upstreams::upstream_world(&root, &prep.processes, config);
        let access =
            UpstreamOAuthAccess::open(world, name, settings).map_err(|why| anyhow!(why))?;
        let opened =
            upstreams::open_upstreams(&root, &prep.processes, config, &ChangeFeed::default())?;
        let upstreams = opened.upstreams;
        Ok(Self { name: name.to_owned(), access, upstreams, processes: prep.processes })
    }

    /// Signs the user in and returns a summary. Calls `report` for each step.
    ///
    /// `show` displays the URL of the sign-in page. `pasted` receives the final URL if the browser
    /// runs on another machine.
    ///
    /// # Errors
    /// The redirect port is unavailable, nobody signs in within the time `within`, or the upstream
    /// refuses.
    pub async fn sign_in(
        &self,
        report: &mut AuthorizationStepCallback<'_>,
        show: impl FnOnce(&str),
        pasted: &mut mpsc::Receiver<String>,
        within: Duration,
    ) -> anyhow::Result<String> {
        let port = self.access.redirect_port();
        let listener = TcpListener::bind(("127.0.0.1", port)).await;
        let listener = listener.with_context(|| {
            format!("cannot listen on port {port} for the redirect (oauth.redirect_port)")
        })?;
        let redirect = format!("http://127.0.0.1:{}/callback", listener.local_addr()?.port());
        let pending = self.access.sign_in(&redirect, report).await.map_err(|why| anyhow!(why))?;
        show(&pending.page_url());
        let (queries, mut received) = mpsc::channel(BROWSER_CONNECTIONS_MAX);
        let mut listening = pin!(serve_redirects(listener, queries));
        let mut deadline = pin!(tokio::time::sleep(within));
        let query = loop {
            let query = tokio::select! {
                Some(query) = received.recv() => query,
                Some(line) = pasted.recv() => match line.split_once('?') {
                    Some((_, query)) => query.trim().to_owned(),
                    None => continue,
                },
                () = &mut listening => bail!("cannot receive the redirect any longer; try again"),
                () = &mut deadline => {
                    bail!("nobody signed in within {} s; try again", within.as_secs())
                }
            };
            // Any local program can connect, so unrelated redirects are ignored.
            if pending.is_answered_by(&query) {
                break query;
            }
        };
        let signed_in = pending.finish(&query).await.map_err(|why| anyhow!(why));
        // Gives the browser time to receive its page.
        let _ = tokio::time::timeout(Duration::from_millis(300), listening).await;
        signed_in
    }

    /// Deletes the stored credentials of the upstream. Returns false if no credentials were stored.
    ///
    /// # Errors
    /// The credentials cannot be deleted.
    pub async fn sign_out(&self) -> anyhow::Result<bool> {
        self.access.sign_out().await.map_err(|why| anyhow!(why))
    }

    /// Checks each step of signing in at the upstream and calling it, and calls `report` for each
    /// step. Returns true if all steps succeeded.
    pub async fn check_access(&self, report: &mut AuthorizationStepCallback<'_>) -> bool {
        if !self.access.examine(report).await {
            return false;
        }
        let mut listings = self.upstreams.list_each(|name| name == self.name).await;
        let outcome = match listings.pop() {
            Some((_, Ok(listing))) => {
                Ok(format!("MCP {} (tools: {})", listing.revision, listing.tools.len()))
            }
            Some((_, Err(why))) => Err(why),
            None => Err("the upstream is disabled".to_owned()),
        };
        report("listing", &outcome);
        outcome.is_ok()
    }

    /// Stops the programs and connections of the upstreams.
    pub async fn close(self) {
        self.upstreams.close();
        self.processes.close().await;
    }
}

/// Serves the HTTP requests of browsers that return from the sign-in page. Sends the query string
/// of each request's URL to `queries`. Runs until accepting a connection fails.
async fn serve_redirects(listener: TcpListener, queries: mpsc::Sender<String>) {
    let mut browsers = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        while browsers.len() >= BROWSER_CONNECTIONS_MAX {
            browsers.join_next().await;
        }
        let queries = queries.clone();
        let serve = service_fn(move |request: Request<Incoming>| {
            let queries = queries.clone();
            async move { Ok::<_, std::convert::Infallible>(answer_redirect(&request, &queries)) }
        });
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(REQUEST_TIMEOUT).keep_alive(false);
        browsers.spawn(async move {
            let _ = http.serve_connection(TokioIo::new(stream), serve).await;
        });
    }
}

fn answer_redirect(
    request: &Request<Incoming>,
    queries: &mpsc::Sender<String>,
) -> Response<Full<Bytes>> {
    let (status, text) = match (request.uri().path(), request.uri().query()) {
        ("/callback", Some(query)) => {
            // The terminal reports if the sign-in succeeded.
            let _ = queries.try_send(query.to_owned());
            (StatusCode::OK, "Return to the terminal, which shows if you are signed in.")
        }
        _ => (StatusCode::NOT_FOUND, "This page does not exist."),
    };
    let page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>toolgate</title>\
         <style>body{{font:1.1rem system-ui,sans-serif;margin:20vh auto;max-width:32rem;\
         padding:0 1rem;text-align:center;color-scheme:light dark}}</style>\
         <h1>toolgate</h1><p>{text}</p></html>\n"
    );
    let mut response = Response::new(Full::new(Bytes::from(page)));
    *response.status_mut() = status;
    let value = HeaderValue::from_static;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, value("text/html; charset=utf-8"));
    // The URL contains an authorization code.
    headers.insert(CACHE_CONTROL, value("no-store"));
    headers.insert("referrer-policy", value("no-referrer"));
    let policy = "default-src 'none'; style-src 'unsafe-inline'";
    headers.insert(CONTENT_SECURITY_POLICY, value(policy));
    response
}
