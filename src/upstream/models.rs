//! The upstream's list of models: the request for it, and the context windows in the answer.

use std::time::Duration;

use http::header::{ACCEPT, HeaderValue};
use http::{Method, Request, Response, Uri};
use hyper::body::Incoming;

use crate::body::{self, Budget, Lease, Limits, ReadError, RequestBody, pool::Pool};
use crate::tokens::models::windows_in;

/// The longest list that is read, in bytes. Those of large gateways are a tenth of it.
const MAX_LISTING: usize = 8 << 20;

/// A `GET` of the list at this URL, without a credential.
pub fn request(url: Uri) -> Request<RequestBody> {
    let mut request = Request::new(RequestBody::buffered(&[], Lease::default()));
    *request.method_mut() = Method::GET;
    *request.uri_mut() = url;
    request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
    request
}

/// Reads the names of models and their context windows from an answer with status 200, which may pause for `pause`.
pub async fn read_windows(answer: Response<Incoming>, pause: Duration) -> Result<Vec<(String, usize)>, ReadError> {
    // A separate budget, so that this takes nothing from requests.
    let limits = Limits { max_body: MAX_LISTING, pause, budget: Budget::new(2 * MAX_LISTING), pool: Pool::default() };
    let listing = body::read_up_to(answer.into_body(), &limits).await?;
    Ok(windows_in(&listing.bytes))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::net::TcpListener;
    use std::sync::mpsc;
    use std::thread;

    use super::*;
    use crate::upstream::connect::Proxies;
    use crate::upstream::{Settings, Upstream};

    const LISTING: &str = r#"{"data":[{"id":"house-model","max_model_len":16000},{"id":"other"}]}"#;

    /// Asks an upstream whose list has this many bytes, and returns the lines of the request's head with what was read.
    async fn ask(length: usize) -> (Vec<String>, Result<Vec<(String, usize)>, ReadError>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let (sender, head) = mpsc::channel();
        thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let lines = BufReader::new(&socket).lines().map(Result::unwrap);
            sender.send(lines.take_while(|line| !line.is_empty()).collect()).unwrap();
            let mut listing = LISTING.as_bytes().to_vec();
            listing.resize(length, b' ');
            write!(socket, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n").unwrap();
            // A list that is too long is not read: this then fails when the runtime closes the connection.
            let _sent = socket.write_all(&listing);
        });
        let settings = Settings { url: url.parse().unwrap(), ..Settings::default() };
        let upstream = Upstream::new(&settings, &Proxies::default(), None).unwrap();
        let url = upstream.join(&Uri::from_static("/v1/models")).unwrap();
        let answer = upstream.send(request(url)).await.unwrap();
        let windows = read_windows(answer, Duration::from_secs(10)).await;
        (head.recv().unwrap(), windows)
    }

    #[tokio::test]
    async fn a_list_of_the_limit_is_read_and_one_byte_more_is_not() {
        let (head, windows) = ask(MAX_LISTING).await;
        assert_eq!(head[0], "GET /v1/models HTTP/1.1");
        assert!(head.contains(&"accept: application/json".to_owned()), "{head:?}");
        assert_eq!(windows.unwrap(), [("house-model".to_owned(), 16000)]);

        let (_, windows) = ask(MAX_LISTING + 1).await;
        assert!(matches!(windows, Err(ReadError::TooLong { limit: MAX_LISTING, .. })), "{windows:?}");
    }
}
