package tollgate;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RRateLimiter;
import org.redisson.api.RateIntervalUnit;
import org.redisson.api.RateLimiterConfig;
import org.redisson.api.RateType;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/**
 * Runs the real RRateLimiter by commands on standard input.
 *
 * <p>The only argument is the url of Redis. Each line is {@code <id> <command> <name> [arguments]}, and each answer is
 * a line of JSON with that id, in the order of the commands; only {@code flood} runs beside the others.
 *
 * <pre>
 * try_set|set NAME overall|client RATE INTERVAL_MS [KEEP_ALIVE_MS]
 * update      NAME overall|client RATE INTERVAL_MS KEEP_ALIVE_MS keep|drop
 * acquire     NAME TIMES PERMITS       tryAcquire(permits), several times
 * wait        NAME PERMITS TIMEOUT_MS  tryAcquire(permits, timeout)
 * flood       NAME MS PERMITS THREADS  tryAcquire(permits) without a pause, the permits granted, and when each call
 *                                      that got them began and ended
 * release     NAME PERMITS
 * available | rate | delete | exists | ttl | clear_expire   NAME
 * expire      NAME MS
 * </pre>
 */
public final class Limiter {
    private final RedissonClient client;

    private Limiter(RedissonClient client) {
        this.client = client;
    }

    public static void main(String[] arguments) throws Exception {
        Config config = new Config();
        config.setCodec(StringCodec.INSTANCE);
        config.setNettyThreads(4);
        config.useSingleServer()
            .setAddress(arguments[0])
            .setConnectionMinimumIdleSize(1)
            .setConnectionPoolSize(16)
            .setSubscriptionConnectionMinimumIdleSize(1)
            .setRetryAttempts(20);
        RedissonClient client = Redisson.create(config);
        Limiter limiter = new Limiter(client);
        say("ready", "\"version\":\"" + Redisson.class.getPackage().getImplementationVersion() + "\"");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.trim().split(" +");
            if (words.length < 3) {
                continue;
            }
            if (words[1].equals("flood")) {
                new Thread(() -> limiter.answer(words)).start();
            } else {
                limiter.answer(words);
            }
        }
        client.shutdown();
    }

    private static synchronized void say(String id, String fields) {
        System.out.println("{\"id\":\"" + id + "\"," + fields + "}");
        System.out.flush();
    }

    private void answer(String[] words) {
        try {
            say(words[0], run(words[1], client.getRateLimiter(words[2]), words));
        } catch (Throwable thrown) {
            Throwable cause = thrown instanceof InvocationTargetException ? thrown.getCause() : thrown;
            String text = String.valueOf(cause).replace("\\", "\\\\").replace("\"", "\\\"");
            say(words[0], "\"error\":\"" + text.replaceAll("\\s+", " ") + "\"");
        }
    }

    private String run(String command, RRateLimiter limiter, String[] words) throws Exception {
        switch (command) {
            case "try_set":
                return result(setRate("trySetRate", limiter, words));
            case "set":
                setRate("setRate", limiter, words);
                return result("done");
            case "update":
                return result(update(limiter, words));
            case "acquire":
                return acquire(limiter, Integer.parseInt(words[3]), Long.parseLong(words[4]));
            case "wait":
                return result(limiter.tryAcquire(Long.parseLong(words[3]), Long.parseLong(words[4]), TimeUnit.MILLISECONDS));
            case "flood":
                return flood(limiter, Long.parseLong(words[3]), Long.parseLong(words[4]), Integer.parseInt(words[5]));
            case "release":
                call(limiter, "release", new Class<?>[] {long.class}, Long.parseLong(words[3]));
                return result("done");
            case "available":
                return result(limiter.availablePermits());
            case "rate":
                return rate(limiter);
            case "delete":
                return result(limiter.delete());
            case "exists":
                return result(limiter.isExists());
            case "ttl":
                return result(limiter.remainTimeToLive());
            case "expire":
                return result(limiter.expire(Duration.ofMillis(Long.parseLong(words[3]))));
            case "clear_expire":
                return result(limiter.clearExpire());
            default:
                throw new IllegalArgumentException("unknown command " + command);
        }
    }

    private static String result(Object value) {
        return "\"result\":" + (value instanceof String ? "\"" + value + "\"" : String.valueOf(value));
    }

    private static RateType type(String word) {
        return word.equals("client") ? RateType.PER_CLIENT : RateType.OVERALL;
    }

    /** Methods that not every version has are called by name. */
    private static Object call(RRateLimiter limiter, String name, Class<?>[] types, Object... values) throws Exception {
        Method method = RRateLimiter.class.getMethod(name, types);
        return method.invoke(limiter, values);
    }

    private static Object setRate(String method, RRateLimiter limiter, String[] words) throws Exception {
        RateType type = type(words[3]);
        long rate = Long.parseLong(words[4]);
        long interval = Long.parseLong(words[5]);
        if (words.length > 6) {
            Class<?>[] types = {RateType.class, long.class, Duration.class, Duration.class};
            Duration keepAlive = Duration.ofMillis(Long.parseLong(words[6]));
            return call(limiter, method, types, type, rate, Duration.ofMillis(interval), keepAlive);
        }
        Class<?>[] types = {RateType.class, long.class, long.class, RateIntervalUnit.class};
        return call(limiter, method, types, type, rate, interval, RateIntervalUnit.MILLISECONDS);
    }

    /** By reflection, since updateRate and its arguments came with 4.4.0. */
    private static Object update(RRateLimiter limiter, String[] words) throws Exception {
        Class<?> api;
        try {
            api = Class.forName("org.redisson.api.ratelimiter.RateLimiterArgs");
        } catch (ClassNotFoundException missing) {
            throw new UnsupportedOperationException("this version has no updateRate");
        }
        Object args = api.getMethod("of", RateType.class, long.class, Duration.class)
            .invoke(null, type(words[3]), Long.parseLong(words[4]), Duration.ofMillis(Long.parseLong(words[5])));
        long keepAlive = Long.parseLong(words[6]);
        if (keepAlive > 0) {
            args = api.getMethod("keepAliveTime", Duration.class).invoke(args, Duration.ofMillis(keepAlive));
        }
        args = api.getMethod("keepState", boolean.class).invoke(args, words[7].equals("keep"));
        return call(limiter, "updateRate", new Class<?>[] {api}, args);
    }

    private static String acquire(RRateLimiter limiter, int times, long permits) {
        long granted = 0;
        StringBuilder at = new StringBuilder();
        for (int i = 0; i < times; i++) {
            if (limiter.tryAcquire(permits)) {
                granted++;
                at.append(at.length() == 0 ? "" : ",").append(System.currentTimeMillis());
            }
        }
        return "\"result\":" + granted + ",\"at\":[" + at + "]";
    }

    private static String flood(RRateLimiter limiter, long milliseconds, long permits, int threads) throws Exception {
        List<List<Long>> calls = Collections.synchronizedList(new ArrayList<>());
        List<String> errors = Collections.synchronizedList(new ArrayList<>());
        long end = System.currentTimeMillis() + milliseconds;
        Runnable work = () -> {
            for (long begun; (begun = System.currentTimeMillis()) < end; ) {
                try {
                    if (limiter.tryAcquire(permits)) {
                        calls.add(List.of(begun, System.currentTimeMillis()));
                    } else {
                        Thread.sleep(1);
                    }
                } catch (Exception thrown) {
                    errors.add("\"" + thrown.getClass().getSimpleName() + "\"");
                }
            }
        };
        List<Thread> running = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            Thread thread = new Thread(work);
            thread.start();
            running.add(thread);
        }
        for (Thread thread : running) {
            thread.join();
        }
        return "\"result\":" + calls.size() * permits + ",\"calls\":" + calls + ",\"errors\":" + errors;
    }

    private static String rate(RRateLimiter limiter) throws Exception {
        RateLimiterConfig config = limiter.getConfig();
        return "\"rate\":" + config.getRate() + ",\"interval\":" + config.getRateInterval()
            + ",\"type\":\"" + config.getRateType() + "\"";
    }
}
