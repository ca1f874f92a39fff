//! What the dashboard looks like on a desk and on a phone, in light and in dark colors.

use serde_json::json;

use super::{ask, gateway, page};
use crate::{
    check::certify,
    harness::{browser::Browser, gateway::Gateway, redis::Redis, upstream::Upstream, wait_until},
};

/// A page about a gateway with everything to show, and with problems.
struct Troubled {
    browser: Browser,
    _gateway: Gateway,
    _redis: Redis,
}

impl Troubled {
    fn open() -> Self {
        let (mut redis, alive) = (Redis::start(), Upstream::hello());
        let folder = tempfile::tempdir().unwrap();
        certify(folder.path(), 2021);
        let file = |name: &str| folder.path().join(name).display().to_string();
        let (cert, key) = (file("a.pem"), file("a.key"));
        let (store, alive) = (redis.store(), alive.url());
        let gateway = Gateway::start(&format!(
            "{store}[admin]\nlisten = \"127.0.0.1:0\"\n\
             [upstreams.orders]\nservers = [\"{alive}\", \"http://127.0.0.1:1\"]\n\
             health = {{ path = \"/\", interval = \"100ms\", fall = 1, rise = 1 }}\n\
             [upstreams.a-service-with-quite-a-long-name]\nservers = [\"https://127.0.0.1:2\"]\n\
             tls = {{ ca = {cert:?}, cert = {cert:?}, key = {key:?} }}\n\
             [limits.per-key]\nkey = \"header:x-api-key\"\nrate = \"2/h\"\nplain = true\nban = {{ after = \"2/h\", for = \"1d\" }}\n\
             overrides = [{{ key = \"gold\", rate = \"1000000/10s\" }}]\n\
             [limits.a-limit-with-quite-a-long-name-in-shadow-mode]\nkey = [\"ip\", \"header:user-agent\"]\nrate = \"1/h\"\nmode = \"shadow\"\n\
             [[routes]]\npath = \"/{{*rest}}\"\nupstream = \"orders\"\n\
             limits = [\"per-key\", \"a-limit-with-quite-a-long-name-in-shadow-mode\"]\n\
             [[routes]]\nname = \"a-route-with-quite-a-long-name-of-its-own\"\npath = \"/long\"\nupstream = \"a-service-with-quite-a-long-name\"\n"
        ));
        for key in ["a", "an-api-key-of-quite-some-length-that-no-phone-has-room-for-1234"] {
            (0..5).for_each(|_| _ = ask(&gateway, key));
        }
        (0..2_000).for_each(|_| _ = ask(&gateway, "gold"));
        gateway.get("/long");
        let browser = Browser::open(&page(&gateway));
        for (table, text) in [("bans", "an-api-key"), ("overrides", "gold"), ("store", "127.0.0.1")] {
            browser.wait_for(&format!("#{table} tbody"), text);
        }
        browser.click("#refused tbody button");
        browser.wait_for("#found-left", "0");
        redis.kill();
        gateway.reload("nonsense = [");
        for problem in ["store is down", "reload failed", "expired on", "1 of 2 servers"] {
            browser.wait_for("#problems", problem);
        }
        Self { browser, _gateway: gateway, _redis: redis }
    }
}

/// A script that defines `texts`: all texts of the page that are shown, each with its element, its box and the part of it that isn't cut off.
const TEXTS: &str = "
    const texts = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const element = walker.currentNode.parentElement;
      if (!walker.currentNode.textContent.trim() || !element.checkVisibility()) continue;
      if (element.closest('.skip, option, noscript')) continue;
      const range = document.createRange();
      range.selectNodeContents(walker.currentNode);
      for (const { left, right, top, bottom } of range.getClientRects()) {
        const box = { left, right, top, bottom };
        const seen = { ...box };
        for (let around = element; around; around = around.parentElement) {
          if (getComputedStyle(around).overflowX === 'visible') continue;
          const edge = around.getBoundingClientRect();
          seen.left = Math.max(seen.left, edge.left);
          seen.right = Math.min(seen.right, edge.right);
        }
        texts.push({ element, text: walker.currentNode.textContent, box, seen });
      }
    }
";

/// A script that returns the texts that are cut off or beside the page. Keys may be: they end with an ellipsis, and have a title.
const CUT: &str = "return texts.filter(({ element, box, seen }) =>
    box.left < 0 || seen.right > innerWidth || (!element.closest('.key') && box.right - seen.right > 1))
    .map(({ text, box }) => `${text}: ${box.left} to ${box.right}`);";

/// A script that returns pairs of texts that lie on one another.
const COLLISIONS: &str = "
    const collide = (one, other) => Math.min(one.right, other.right) - Math.max(one.left, other.left) > 1
      && Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top) > 3;
    return texts.flatMap((one, at) => texts.slice(at + 1).filter((other) => one.element !== other.element && collide(one.seen, other.seen))
      .map((other) => `${one.text} / ${other.text} at ${one.seen.left}, ${one.seen.top}`));";

/// A script that returns the texts whose contrast with their ground is below 4.5, as WCAG 2 defines it, and the lines of charts
/// below 3.
const FAINT: &str = "
    const channels = (color) => color.match(/[0-9.]+/g).map(Number);
    const luminance = (color) => channels(color).slice(0, 3).map((channel) => channel / 255)
      .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
      .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
    const groundOf = (element) => {
      const ground = getComputedStyle(element).backgroundColor;
      return (channels(ground)[3] ?? 1) === 1 ? ground : groundOf(element.parentElement);
    };
    const contrast = (color, ground) => {
      const [dark, light] = [luminance(color), luminance(ground)].sort((one, other) => one - other);
      return (light + 0.05) / (dark + 0.05);
    };
    const pairs = texts.map(({ element, text }) => {
      const { color, fill } = getComputedStyle(element);
      return [element.closest('svg') ? fill : color, element, text, 4.5];
    });
    for (const cell of document.querySelectorAll('td')) {
      pairs.push([getComputedStyle(cell, '::before').color, cell, cell.dataset.title, 4.5]);
    }
    for (const field of document.querySelectorAll('input')) {
      pairs.push([getComputedStyle(field, '::placeholder').color, field, field.placeholder, 4.5]);
      pairs.push([getComputedStyle(field).color, field, field.id, 4.5]);
    }
    for (const line of document.querySelectorAll('path.line')) {
      pairs.push([getComputedStyle(line).stroke, line.closest('.card'), line.getAttribute('class'), 3]);
    }
    return pairs.map(([color, element, text, least]) => [contrast(color, groundOf(element)), text, least])
      .filter(([found, , least]) => !(found >= least)).map(([found, text]) => `${text}: ${found}`);";

#[test]
fn nothing_is_cut_faint_or_on_top_of_something_else() {
    let page = Troubled::open();
    let browser = &page.browser;
    let mut grounds = Vec::new();
    for (width, scheme) in [(1440, "light"), (1440, "dark"), (390, "light"), (390, "dark")] {
        browser.show_on(width, scheme);
        let widths = "const { scrollWidth, clientWidth } = document.documentElement;\
                      return [innerWidth, scrollWidth - clientWidth]";
        wait_until("it fits", || browser.run(widths) == json!([width, 0]));
        let drawn = "return document.getAnimations().length === 0 && [...document.querySelectorAll('svg')].every((svg) =>\
                     +svg.querySelector('.grid').getAttribute('x2') === svg.getBoundingClientRect().width - 6)";
        wait_until("the charts are drawn for this width", || browser.run(drawn) == json!(true));
        for (what, faults) in [("cut off", CUT), ("on one another", COLLISIONS), ("too faint", FAINT)] {
            let found = browser
                .run(&format!("{TEXTS} return texts.length > 100 ? (() => {{ {faults} }})() : 'no texts';"));
            assert_eq!(found, json!([]), "{what} at {width} px, {scheme}");
        }
        grounds.push(browser.run("return getComputedStyle(document.body).backgroundColor"));
    }
    assert!(grounds[0] != grounds[1] && grounds[1] == grounds[3], "{grounds:?}");
}

/// Opens the page of a gateway that has refused a short and a long key.
fn short_and_long_key() -> (Gateway, Browser) {
    let gateway = gateway("1/h", "");
    for key in ["a", "an-api-key-of-quite-some-length-that-no-phone-has-room-for-1234"] {
        assert_eq!([ask(&gateway, key), ask(&gateway, key)], [200, 429]);
    }
    let browser = Browser::open(&page(&gateway));
    browser.wait_for("#refused tbody", "an-api-key");
    (gateway, browser)
}

#[test]
fn a_phone_shows_all_of_it_without_scrolling_sideways() {
    let (_gateway, browser) = short_and_long_key();
    browser.click("#refused tbody button");
    browser.wait_for("#found-left", "0");
    let mut grounds = Vec::new();
    for scheme in ["light", "dark"] {
        browser.show_on(360, scheme);
        let widths = "return [document.documentElement.scrollWidth, innerWidth]";
        wait_until("it fits", || browser.run(widths) == serde_json::json!([360, 360]));
        grounds.push(browser.run("return getComputedStyle(document.body).backgroundColor"));
    }
    assert_ne!(grounds[0], grounds[1]);
}

#[test]
fn all_numbers_of_the_tables_are_seen_on_a_phone() {
    let (_gateway, browser) = short_and_long_key();
    browser.show_on(390, "light");
    let cut = "return [...document.querySelectorAll('tbody td, tbody th')].filter((cell) => {\
               const { left, right, width } = cell.getBoundingClientRect();\
               return cell.closest('.scroll').hidden ? false : !cell.checkVisibility() || width === 0 || left < 0 || right > 390;\
               }).map((cell) => cell.outerHTML)";
    wait_until("nothing is cut", || browser.run(cut) == serde_json::json!([]));
    let titles = browser
        .run("return [...document.querySelectorAll('#limits tbody td')].map((cell) => cell.dataset.title)");
    for title in ["Rate", "admitted", "rejected", "skipped", "rejected, total"] {
        assert!(titles.as_array().unwrap().contains(&title.into()), "{titles}");
    }
}
