//! The JSON Schema of gateway.toml, for editors: gateway.schema.json. A test derives it from the types that read the file, whose
//! doc comments become the descriptions. After a change of the keys: `INSTA_UPDATE=always cargo test -p tollgate-config schema`.
//!
//! It describes each value by itself, and of most strings just the form; `check` knows more rules. Any string
//! may contain `${NAME}`, so a string with a reference is always accepted.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings, json_schema};
use serde_json::{Value, json};
use tollgate_limiter::Rate;

use super::{
    Cost,
    file::{
        ConfigFile, LimitTable, Pairs, RateOrZero, ResponseCostTable, RouteLimit, RouteUpstreams,
        ServerEntry, ServerList, Spanned, SpannedTable, UpstreamServerTable, ValueList,
    },
    value::{AnyRate, Fraction, FromText, GatewayCount, ParsedText, Whole},
};

#[test]
fn the_schema_in_the_repository_is_that_of_the_types() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/gateway.schema.json");
    let schema = format!("{:#}\n", schema());
    if std::env::var("INSTA_UPDATE").is_ok_and(|update| update == "always") {
        std::fs::write(path, &schema).unwrap();
    }
    let is_fresh = std::fs::read_to_string(path).unwrap() == schema;
    assert!(is_fresh, "stale: INSTA_UPDATE=always cargo test -p tollgate-config schema");
}

/// Returns the JSON Schema of gateway.toml, in draft 7, which editors of TOML support.
fn schema() -> Value {
    let schema = SchemaSettings::draft07().into_generator().into_root_schema_for::<ConfigFile>();
    let mut schema = schema.to_value();
    schema["title"] = json!("gateway.toml");
    tidy(&mut schema);
    schema
}

/// Joins the lines of descriptions, and removes `null`, which TOML doesn't have.
fn tidy(schema: &mut Value) {
    let is_null = |value: &Value| *value == json!("null") || *value == json!({ "type": "null" });
    match schema {
        Value::Object(fields) => fields.iter_mut().for_each(|(name, value)| match (name.as_str(), value) {
            ("description", Value::String(text)) => *text = text.replace('\n', " "),
            ("type" | "anyOf", Value::Array(options)) => {
                options.retain(|option| !is_null(option));
                options.iter_mut().for_each(tidy);
            }
            (_, value) => tidy(value),
        }),
        Value::Array(values) => values.iter_mut().for_each(tidy),
        _ => {}
    }
}

/// The start of a reference to an environment variable.
const VARIABLE: &str = r"\$\{";

/// Returns the schema of a string. Its choices or examples come from the text for error messages.
fn of_string(expected: &str, form: Option<&str>) -> Schema {
    let words: Vec<_> = expected.split('"').skip(1).step_by(2).collect();
    let between = expected.split('"').step_by(2).map(|text| text.trim_matches([' ', ',']));
    if !words.is_empty() && between.into_iter().all(|text| matches!(text, "" | "or")) {
        return json_schema!({ "anyOf": [{ "enum": words }, { "type": "string", "pattern": VARIABLE }] });
    }
    let mut schema = json_schema!({ "type": "string" });
    if let Some(form) = form {
        schema.insert("pattern".to_owned(), json!(format!("^(?:{form})$|{VARIABLE}")));
    }
    if !words.is_empty() {
        schema.insert("examples".to_owned(), json!(words));
    }
    schema
}

/// Implements `JsonSchema` for wrappers: they have the schema of what they contain.
macro_rules! as_what_it_holds {
    ($($holder:ident),*) => {$(
        impl<T: JsonSchema> JsonSchema for $holder<T> {
            fn inline_schema() -> bool {
                T::inline_schema()
            }

            fn schema_name() -> Cow<'static, str> {
                T::schema_name()
            }

            fn schema_id() -> Cow<'static, str> {
                T::schema_id()
            }

            fn json_schema(generator: &mut SchemaGenerator) -> Schema {
                T::json_schema(generator)
            }
        }
    )*};
}

as_what_it_holds!(Spanned, SpannedTable);

/// Implements `JsonSchema` for types that have no definition of their own in the schema.
macro_rules! unnamed {
    ($([$($generics:tt)*] $type:ty: $schema:expr;)*) => {$(
        impl<$($generics)*> JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(generator: &mut SchemaGenerator) -> Schema {
                let of: fn(&mut SchemaGenerator) -> Schema = $schema;
                of(generator)
            }
        }
    )*};
}

unnamed! {
    [T: FromText] ParsedText<T>: |_| of_string(T::EXPECTED, T::FORM);
    [const MIN: u32, const MAX: u32] Whole<MIN, MAX>: |_| {
        json_schema!({ "type": "integer", "minimum": MIN, "maximum": MAX })
    };
    [] GatewayCount: |generator| {
        let number = generator.subschema_for::<Whole<1, { GatewayCount::MAX }>>();
        json_schema!({ "anyOf": [number, of_string("\"auto\"", None)] })
    };
    [] Fraction: |_| json_schema!({ "type": "number", "minimum": 0, "maximum": 1 });
    [T: FromText] ValueList<T>: |generator| one_or_many::<ParsedText<T>>(generator);
    [K: FromText, V: FromText] Pairs<K, V>: |generator| {
        let value = generator.subschema_for::<ParsedText<V>>();
        json_schema!({ "type": "object", "additionalProperties": value })
    };
    [] Cost: |generator| {
        let response = generator.subschema_for::<ResponseCostTable>();
        let number = json!({ "type": "integer", "minimum": 1, "maximum": Rate::MAX_PERMITS });
        let header = json!({ "type": "string", "pattern": format!("^header:.+$|{VARIABLE}"), "examples": ["header:x-cost"] });
        json_schema!({ "anyOf": [number, header, response] })
    };
    [] RateOrZero: |generator| {
        let rate = generator.subschema_for::<ParsedText<AnyRate>>();
        json_schema!({ "anyOf": [{ "const": 0 }, rate] })
    };
    [] RouteLimit: |generator| {
        let inline = generator.subschema_for::<LimitTable>();
        json_schema!({ "anyOf": [{ "type": "string" }, inline] })
    };
    [] RouteUpstreams: |generator| {
        let weights = generator.subschema_for::<std::collections::BTreeMap<String, Whole<0, 1000>>>();
        json_schema!({ "anyOf": [{ "type": "string" }, weights] })
    };
    [] ServerList: |generator| one_or_many::<ServerEntry>(generator);
    [] ServerEntry: |generator| {
        let url = generator.subschema_for::<ParsedText<super::ServerUrl>>();
        let table = generator.subschema_for::<UpstreamServerTable>();
        json_schema!({ "anyOf": [url, table] })
    };
}

fn one_or_many<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    let one = generator.subschema_for::<T>();
    json_schema!({ "anyOf": [one, { "type": "array", "items": one, "minItems": 1 }] })
}
