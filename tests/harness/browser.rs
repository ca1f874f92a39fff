//! A browser: Debian's headless chromium, driven by its chromedriver (W3C WebDriver).

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{client::Client, wait_until};

/// A browser with one page. Dropping it closes the browser.
pub(crate) struct Browser {
    driver: Child,
    /// The browser's temporary files, some of which it leaves behind.
    _folder: TempDir,
    address: String,
    session: String,
}

/// The number of attempts to start a driver.
const STARTS: usize = 5;

/// Keys without a character: <https://www.w3.org/TR/webdriver2/#keyboard-actions>.
pub(crate) const TAB: &str = "\u{e004}";
pub(crate) const ENTER: &str = "\u{e007}";

/// Starts a driver, whose temporary files are in this folder. Returns it with its port, or `None` if it ended before it listened.
fn start_driver(folder: &Path) -> Option<(Child, String)> {
    let mut command = Command::new("chromedriver");
    let driver = command.arg("--port=0").env("TMPDIR", folder).stdout(Stdio::piped()).spawn();
    let mut driver = driver.expect("a chromedriver on PATH: scripts/test.sh installs it");
    let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines().map_while(Result::ok);
    let port = lines
        .find_map(|line| Some(line.split_once("successfully on port ")?.1.trim_end_matches('.').to_owned()));
    if port.is_none() {
        driver.wait().expect("it has ended");
    }
    Some((driver, port?))
}

impl Browser {
    /// Opens a page.
    pub(crate) fn open(url: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // The driver takes a free port of IPv4, which may be in use for IPv6. Then it ends.
        let (driver, port) =
            (0..STARTS).find_map(|_| start_driver(folder.path())).expect("chromedriver listens");
        let address = format!("127.0.0.1:{port}");
        // Root may not use the sandbox, and containers have little shared memory.
        let arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"];
        let mut browser = Self { driver, _folder: folder, address, session: String::new() };
        let session = browser.call(
            "POST",
            "/session",
            &json!({ "capabilities": { "alwaysMatch": {
                "goog:loggingPrefs": { "browser": "ALL", "performance": "ALL" },
                "goog:chromeOptions": { "args": arguments },
            } } }),
        );
        browser.session = format!("/session/{}", session["sessionId"].as_str().expect("an id"));
        browser.post("/url", &json!({ "url": url }));
        browser
    }

    /// Runs a script and returns its result.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.post("/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Returns the visible text of an element.
    pub(crate) fn text(&self, selector: &str) -> String {
        let script = format!(
            "const shown = document.querySelector({selector:?}); return shown?.checkVisibility() ? shown.innerText : ''"
        );
        let text = self.run(&script);
        text.as_str().expect("a text").to_owned()
    }

    /// Waits until an element's text contains this text.
    pub(crate) fn wait_for(&self, selector: &str, text: &str) {
        wait_until(&format!("`{selector}` shows `{text}`"), || self.text(selector).contains(text));
    }

    /// Clicks on an element, which must be visible.
    pub(crate) fn click(&self, selector: &str) {
        self.post(&format!("/element/{}/click", self.element(selector)), &json!({}));
    }

    /// Writes into an empty field.
    pub(crate) fn write(&self, selector: &str, text: &str) {
        self.post(&format!("/element/{}/value", self.element(selector)), &json!({ "text": text }));
    }

    /// Presses keys one after another in the focused element.
    pub(crate) fn press(&self, keys: &str) {
        let strokes =
            keys.chars().flat_map(|key| ["keyDown", "keyUp"].map(|act| json!({ "type": act, "value": key })));
        let actions = json!([{ "type": "key", "id": "keyboard", "actions": strokes.collect::<Vec<_>>() }]);
        self.post("/actions", &json!({ "actions": actions }));
    }

    /// Returns the id of the focused element.
    pub(crate) fn focus(&self) -> String {
        self.run("return document.activeElement.id").as_str().expect("an id").to_owned()
    }

    /// Shows the page with this width in pixels, and a dark or light color scheme.
    pub(crate) fn show_on(&self, width: u32, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.develop("Emulation.setEmulatedMedia", &json!({ "features": features }));
        let screen = json!({ "width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500 });
        self.develop("Emulation.setDeviceMetricsOverride", &screen);
    }

    /// Returns the page's warnings and errors so far, including those on the console.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let log = self.post("/se/log", &json!({ "type": "browser" }));
        let entries = log.as_array().expect("a list").iter();
        let bad = entries.filter(|entry| ["WARNING", "SEVERE"].iter().any(|level| entry["level"] == **level));
        bad.map(|entry| entry["message"].to_string()).collect()
    }

    /// Returns the URLs that were requested so far, or should have been.
    pub(crate) fn requests(&self) -> Vec<String> {
        let log = self.post("/se/log", &json!({ "type": "performance" }));
        let messages = log.as_array().expect("a list").iter();
        let messages =
            messages.map(|entry| serde_json::from_str(entry["message"].as_str().unwrap()).unwrap());
        let sent =
            messages.filter(|message: &Value| message["message"]["method"] == "Network.requestWillBeSent");
        let url =
            |message: Value| message["message"]["params"]["request"]["url"].as_str().unwrap().to_owned();
        sent.map(url).collect()
    }

    fn develop(&self, command: &str, parameters: &Value) {
        self.post("/goog/cdp/execute", &json!({ "cmd": command, "params": parameters }));
    }

    /// Returns the driver's id of the only matching element.
    fn element(&self, selector: &str) -> String {
        let found = self.post("/element", &json!({ "using": "css selector", "value": selector }));
        let name = found.as_object().and_then(|found| found.values().next()?.as_str());
        name.unwrap_or_else(|| panic!("no `{selector}`: {found}")).to_owned()
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        self.call("POST", &format!("{}{path}", self.session), body)
    }

    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = body.to_string();
        let mut client = Client::connect(self.address.parse().unwrap());
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        client.send((head + &body).as_bytes());
        let answer = client.answer();
        assert_eq!(answer.status, 200, "{path} {body}: {}", answer.text());
        answer.json()["value"].take()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The driver closes the browser.
        if let Ok(address) = self.address.parse()
            && !self.session.is_empty()
        {
            let end = format!("DELETE {} HTTP/1.1\r\nHost: {}\r\n\r\n", self.session, self.address);
            let mut client = Client::connect(address);
            client.send(end.as_bytes());
            client.head();
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
