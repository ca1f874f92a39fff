//! `tollgate explain`: shows which route and limits a request would hit.

mod text;

use std::{error::Error, io, process::ExitCode};

use clap::Args;
use hyper::Method;
use serde::Serialize;
use serde_json::Value;
use tollgate_limiter::Limiter;

use crate::{
    config::{Config, FlagOverrides},
    explain::{DescriptorExplanation, DescriptorQuestion, Explanation, Question},
    gateway::Gateway,
};

use self::text::{descriptor_text, text};
use super::{
    complain, fail,
    operator::{AdminCall, AdminPort},
    say, takes_colour,
};

/// The request, and the source of the answer.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tollgate explain GET /v1/orders/5 -H 'x-api-key: gold'
  tollgate explain GET http://api.example.com/ --ip 192.0.2.7 --live

Exit status: 0 explained; 1 the gateway can't be reached or refused; 2 wrong usage or an invalid file.
Environment variables: TOLLGATE_ADMIN_TOKEN, the token of the admin port (with --live); those that the file names as
${NAME}; NO_COLOR turns colour off.")]
pub(super) struct Explain {
    /// Method of the request
    #[arg(required_unless_present = "descriptor")]
    method: Option<String>,
    /// URL of the request, such as http://api.example.com/v1/orders/5, or just its path
    #[arg(required_unless_present = "descriptor")]
    url: Option<String>,
    /// Header field of the request; can be repeated
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", allow_hyphen_values = true)]
    headers: Vec<String>,
    /// Address that the request comes from; if it is a trusted proxy, X-Forwarded-For names the client
    /// [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS")]
    ip: Option<String>,
    /// Descriptor to explain instead of a request, as Envoy asks about it
    #[arg(long, value_name = "DOMAIN:KEY=VALUE,...", conflicts_with_all = ["method", "url", "headers", "ip"])]
    descriptor: Option<String>,
    /// Ask the running gateway, which knows the current counts
    #[arg(long)]
    live: bool,
    #[command(flatten)]
    operator: AdminPort,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Explain {
    /// Runs the command.
    pub(super) fn main(self) -> ExitCode {
        if let Some(written) = &self.descriptor {
            return self.explain_descriptor(written);
        }
        let query = self.query();
        // An invalid request gets the same error with and without --live.
        let question = match Question::from_query(&query) {
            Ok(question) => question,
            Err(remedy) => {
                fail(&remedy.replace('\n', ": "));
                return ExitCode::from(2);
            }
        };
        let explained = if self.live {
            let path = format!("/api/explain?{query}");
            self.operator.ask(AdminCall { method: Method::GET, path, body: String::new() })
        } else {
            self.by_file(|gateway| Explanation::of(gateway, question))
        };
        self.show(explained, text)
    }

    fn explain_descriptor(&self, written: &str) -> ExitCode {
        let question = match DescriptorQuestion::read(written) {
            Ok(question) => question,
            Err(remedy) => {
                fail(&remedy.replace('\n', ": "));
                return ExitCode::from(2);
            }
        };
        let explained = if self.live {
            let mut query = form_urlencoded::Serializer::new(String::new());
            let path = format!("/api/explain?{}", query.append_pair("descriptor", written).finish());
            self.operator.ask(AdminCall { method: Method::GET, path, body: String::new() })
        } else {
            self.by_file(|gateway| DescriptorExplanation::of(gateway, &question))
        };
        self.show(explained, descriptor_text)
    }

    fn show(&self, explained: Result<Value, ExitCode>, text: fn(&Value, bool) -> String) -> ExitCode {
        match explained {
            Ok(explained) if self.json => say(format_args!("{explained:#}\n")),
            Ok(explained) => say(format_args!("{}", text(&explained, takes_colour(&io::stdout())))),
            Err(status) => return status,
        }
        ExitCode::SUCCESS
    }

    fn query(&self) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(self.method.iter().map(|method| ("method", method)));
        query.extend_pairs(self.url.iter().map(|url| ("url", url)));
        query.extend_pairs(self.ip.iter().map(|ip| ("ip", ip)));
        query.extend_pairs(self.headers.iter().map(|header| ("header", header)));
        query.finish()
    }

    fn by_file<E: Serialize>(&self, explain: impl FnOnce(&Gateway) -> E) -> Result<Value, ExitCode> {
        let (config, _) =
            Config::read(&self.operator.config, &FlagOverrides::default()).map_err(|faults| {
                complain(&faults);
                ExitCode::from(2)
            })?;
        by_config(&config, explain).map_err(|error| {
            fail(&error.to_string());
            ExitCode::FAILURE
        })
    }
}

fn by_config<E: Serialize>(
    config: &Config,
    explain: impl FnOnce(&Gateway) -> E,
) -> Result<Value, Box<dyn Error>> {
    // This gateway is never run: no server is probed, and no store is connected.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let _runtime = runtime.enter();
    let gateway = Gateway::build(config, &Limiter::open(&config.store)?, None);
    Ok(serde_json::to_value(explain(&gateway))?)
}
