import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicLong;

/** The application: it says hello, and counts whom it said it to. */
public final class App {
    private static final int PORT = 8080;

    public static void main(String[] arguments) throws IOException {
        AtomicLong visitors = new AtomicLong();
        HttpServer server = HttpServer.create(new InetSocketAddress(PORT), 0);
        server.createContext("/", exchange -> {
            String text = String.format("{\"hello\":\"world\",\"visitor\":%d}%n", visitors.incrementAndGet());
            byte[] body = text.getBytes(StandardCharsets.UTF_8);
            exchange.getResponseHeaders().set("Content-Type", "application/json");
            exchange.sendResponseHeaders(200, body.length);
            exchange.getResponseBody().write(body);
            exchange.close();
        });
        server.setExecutor(Executors.newFixedThreadPool(2));
        server.start();
        System.out.println("listening on port " + PORT);
    }
}
